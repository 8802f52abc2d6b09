"""RULER: 13 long-context tasks, generated within an exact token budget, and their scores [spec 11.1].

Templates, counts and budgets are those of NVIDIA/RULER at commit c3f5e3b. The generator is our own: each item has a
random stream of its own, so it does not depend on which tasks or items were generated before it.

`tasks` has the 13 tasks and `questions` the data sets of two of them; `items` fills tasks to a length and stores them;
`scoring` scores answers and summarises a suite. Import from these: a stage reruns for edits of what it imports only.
"""
