"""
What a part was and is: a step, a trend, and the day on which a limit is crossed.

Between the runs of one part there is far less spread than between parts (0.1 % to 1.7 % on
Longhorn's V100), so its own past sees a change that its peers cannot. `levels` divides each run by
what the fleet reached that night, `fleet` compares the last runs with those before, and `slope`
says when a trend crosses a limit.
"""
