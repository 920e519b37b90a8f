"""The launcher: starts the ranks of a job under MPI, shows what they print, and ends all of them when one fails.

``command`` reads what the user wants to run, ``mpiexec`` finds the MPI that Python will load and builds its command line, ``job`` runs it,
``output`` shows lines, ``verdict`` says how it ended. On the ranks' side ``worker`` starts the process and ``script`` runs the user's program in it.
"""
