/*
 * A disk that goes wrong, below fio and Python: loaded before the C library and libaio.
 *
 * FAULT says how, FAULT_PATH which files (a part of their path), FAULT_SIZE which accesses
 * (their bytes; 0: all), FAULT_OVERWRITES=1 only where data are already. Each process does
 * FAULT_COUNT of them wrong, after the first FAULT_SKIP. FAULT_FOLDER is ours: `sink` takes
 * what is lost, `log` has a line for each fault, NAME@OFFSET is what stood there before.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SECTOR = 4096, FLIPPED_BYTE = 1000 };
enum { READ_CALL = 0, WRITE_CALL = 1 };

/* Of libaio's ABI, on 64 bits and little endian. */
struct iocb {
	void *data;
	unsigned key, flags;
	short opcode, priority;
	int fd;
	char *buffer;
	unsigned long size;
	long long offset;
};
struct event {
	void *data;
	struct iocb *of;
	unsigned long result, status;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long matched;
static struct {
	int fd;
	size_t size;
	char bytes[SECTOR];
} kept = { .fd = -1 };

static const char *setting(const char *name)
{
	const char *value = getenv(name);

	return value ? value : "";
}

static int is(const char *fault)
{
	return !strcmp(setting("FAULT"), fault);
}

static int names(int fd, char *path)
{
	char link[64];
	ssize_t size;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	size = readlink(link, path, PATH_MAX - 1);
	path[size > 0 ? size : 0] = 0;
	return *setting("FAULT_PATH") && strstr(path, setting("FAULT_PATH"));
}

static char *aligned(size_t size)
{
	void *made;

	return posix_memalign(&made, SECTOR, size) ? NULL : memset(made, 0, size);
}

/* What the file has now; all zeros where it has nothing. */
static char *before(const char *path, size_t size, off_t offset)
{
	static ssize_t (*real)(int, void *, size_t, off_t);
	char *old = aligned(size);
	int fd = open(path, O_RDONLY);

	if (!real)
		real = dlsym(RTLD_NEXT, "pread64");
	if (real(fd, old, size, offset) < 0)
		abort();
	close(fd);
	return old;
}

static int has_data(const char *path, off_t offset)
{
	int fd = open(path, O_RDONLY);
	off_t next = lseek(fd, offset, SEEK_DATA);

	close(fd);
	return next == offset;
}

static void note(const char *path, off_t offset)
{
	char log[PATH_MAX];
	FILE *file;

	snprintf(log, sizeof log, "%s/log", setting("FAULT_FOLDER"));
	file = fopen(log, "a");
	fprintf(file, "%s %s %lld\n", setting("FAULT"), path, (long long)offset);
	fclose(file);
}

static int matches(int fd, size_t size, off_t offset, char *path)
{
	long wanted = atol(setting("FAULT_SIZE"));

	return names(fd, path) && (!wanted || (size_t)wanted == size) &&
	       (!*setting("FAULT_OVERWRITES") || has_data(path, offset));
}

/* Whether this access goes wrong. */
static int chosen(int call, int fd, size_t size, off_t offset, char *path)
{
	int turn;

	if ((call == READ_CALL) != (is("flip read") || is("short read")) || !matches(fd, size, offset, path))
		return 0;
	pthread_mutex_lock(&lock);
	turn = matched++ - atol(setting("FAULT_SKIP"));
	pthread_mutex_unlock(&lock);
	if (turn < 0 || turn >= atol(setting("FAULT_COUNT")))
		return 0;
	note(path, offset);
	return 1;
}

static void name_old(const char *path, off_t offset, char *name)
{
	snprintf(name, PATH_MAX, "%s/%s@%lld", setting("FAULT_FOLDER"), strrchr(path, '/') + 1,
		 (long long)offset);
}

/* Of its first sector. */
static void keep_old(const char *path, off_t offset)
{
	char name[PATH_MAX], *old = before(path, SECTOR, offset);
	int fd;

	name_old(path, offset, name);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (writev(fd, &(struct iovec){ old, SECTOR }, 1) != SECTOR)
		abort();
	close(fd);
	free(old);
}

/* Return how much of it the caller is told of. */
static size_t spoil_read(int fd, char *buffer, size_t size, off_t offset)
{
	char path[PATH_MAX], name[PATH_MAX];
	size_t at;
	int old;

	if (is("flip read") && chosen(READ_CALL, fd, size, offset, path))
		buffer[FLIPPED_BYTE] ^= 4;
	if (is("short read") && chosen(READ_CALL, fd, size, offset, path))
		return size / 2;
	if (!is("stale read") || !names(fd, path))
		return size;
	for (at = 0; at < size; at += SECTOR) {
		name_old(path, offset + at, name);
		old = open(name, O_RDONLY);
		if (old >= 0) {
			if (readv(old, &(struct iovec){ buffer + at, SECTOR }, 1) != SECTOR)
				abort();
			close(old);
		}
	}
	return size;
}

/* Change where and what is written; the caller then writes it. */
static void spoil_write(const char *path, int *fd, char **buffer, size_t size, off_t *offset)
{
	char sink[PATH_MAX], *made;

	if (is("lost")) {
		snprintf(sink, sizeof sink, "%s/sink", setting("FAULT_FOLDER"));
		*fd = open(sink, O_WRONLY | O_CREAT, 0600);
	} else if (is("misdirected")) {
		*offset += has_data(path, *offset + size) ? (off_t)size : -(off_t)size;
	} else if (is("torn")) {
		made = before(path, size, *offset);
		memcpy(made, *buffer, size / 2);
		*buffer = made;
	} else if (is("flip write")) {
		made = memcpy(aligned(size), *buffer, size);
		made[FLIPPED_BYTE] ^= 4;
		*buffer = made;
	} else if (is("stale read")) {
		keep_old(path, *offset);
	} else if (is("stall")) {
		nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	}
}

/* Exchange two writes of one thread: the first waits for the second. */
static int exchange(void *context, struct iocb *call, int (*submit)(void *, long, struct iocb **))
{
	static struct {
		void *context;
		struct iocb *first;
	} waiting;
	char path[PATH_MAX];
	long long offset = call->offset;

	if (!waiting.context && chosen(WRITE_CALL, call->fd, call->size, offset, path)) {
		waiting.context = context;
		waiting.first = call;
		return 1;
	}
	if (waiting.first && waiting.context == context &&
	    matches(call->fd, call->size, offset, path)) {
		call->offset = waiting.first->offset;
		waiting.first->offset = offset;
		if (submit(context, 1, &waiting.first) != 1)
			abort();
		waiting.first = NULL;
	}
	return submit(context, 1, &call);
}

int io_submit(void *context, long count, struct iocb **calls)
{
	static int (*real)(void *, long, struct iocb **);
	char path[PATH_MAX];
	long i;

	if (!real)
		real = dlsym(RTLD_NEXT, "io_submit");
	if (is("exchanged") && count == 1 && calls[0]->opcode == WRITE_CALL)
		return exchange(context, calls[0], real);
	for (i = 0; i < count; i++) {
		struct iocb *call = calls[i];
		off_t offset = call->offset;

		if (call->opcode == WRITE_CALL && !is("exchanged") &&
		    chosen(WRITE_CALL, call->fd, call->size, offset, path)) {
			spoil_write(path, &call->fd, &call->buffer, call->size, &offset);
			call->offset = offset;
		}
	}
	return real(context, count, calls);
}

int io_getevents(void *context, long least, long most, struct event *events, void *patience)
{
	static int (*real)(void *, long, long, struct event *, void *);
	int i, count;

	if (!real)
		real = dlsym(RTLD_NEXT, "io_getevents");
	count = real(context, least, most, events, patience);
	for (i = 0; i < count; i++) {
		struct iocb *call = events[i].of;

		if (call->opcode == READ_CALL && (long)events[i].result > 0)
			events[i].result = spoil_read(call->fd, call->buffer, events[i].result,
						      call->offset);
	}
	return count;
}

ssize_t pwrite64(int fd, const void *buffer, size_t size, off_t offset)
{
	static ssize_t (*real)(int, const void *, size_t, off_t);
	char path[PATH_MAX], *bytes = (char *)buffer;

	if (!real)
		real = dlsym(RTLD_NEXT, "pwrite64");
	if (chosen(WRITE_CALL, fd, size, offset, path))
		spoil_write(path, &fd, &bytes, size, &offset);
	return real(fd, bytes, size, offset);
}

/* Small files: what is written begins at 0. */
ssize_t write(int fd, const void *buffer, size_t size)
{
	static ssize_t (*real)(int, const void *, size_t);
	char path[PATH_MAX], *bytes = (char *)buffer;
	off_t offset = 0;

	if (!real)
		real = dlsym(RTLD_NEXT, "write");
	if (size != SECTOR || !chosen(WRITE_CALL, fd, size, offset, path))
		return real(fd, buffer, size);
	if (is("exchanged") && kept.fd < 0) {
		kept.fd = dup(fd);
		kept.size = size;
		memcpy(kept.bytes, buffer, size);
		return size;  /* until the next one */
	}
	if (is("exchanged")) {
		if (real(kept.fd, buffer, size) != (ssize_t)size)
			abort();
		close(kept.fd);
		return real(fd, kept.bytes, kept.size);
	}
	spoil_write(path, &fd, &bytes, size, &offset);
	if (real(fd, bytes, size) != (ssize_t)size)
		abort();
	if (is("removed"))
		unlink(path);
	if (is("cut") && ftruncate(fd, size / 2))
		abort();
	return size;
}

/* What Python calls for os.preadv, where the C library has it. */
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
	static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
	ssize_t got;

	if (!real)
		real = dlsym(RTLD_NEXT, "preadv64v2");
	got = real(fd, parts, count, offset, flags);
	return got > 0 ? (ssize_t)spoil_read(fd, parts[0].iov_base, got, offset) : got;
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t offset)
{
	return preadv64v2(fd, parts, count, offset, 0);
}
