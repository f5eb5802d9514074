"""The worker: a process of its own in which records are read and a mechanism runs, under limits.

::

    node (key, ledger, network)          supervisor (imports, nothing else)       worker (records)
      Worker.run ------- start -------->   forks ------------------------------>   sets its limits
              <----------- channel -----                                            reads the job
              ------------------------------- job ------------------------------>   reads records, adds noise
              <------------------- progress, then a release or an error --------
              <--------- how it ended --   watches, kills, waits

The supervisor is a fresh interpreter that has imported what mechanisms need, so that a worker starts in milliseconds.
It is started before anybody talks to it, with one socket and a few variables of the environment; what a job says does
not pass through it, so it never sees a record, the key or the ledger, and neither does what it forks inherit any.
"""
