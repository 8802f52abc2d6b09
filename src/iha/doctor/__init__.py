"""`iha doctor`: what a run will need, looked at before it is started, on this machine and as a job of the cluster.

Every check is a generator of outcomes; none may stop the others. torch is imported by the checks that need it.
"""
