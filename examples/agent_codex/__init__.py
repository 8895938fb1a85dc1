"""Two agent roles over a file queue: a worker that talks and a builder that edits repositories after a person's yes.

Copy this directory and make it yours; README.md says how. Everything the roles must remember goes through
`agentstate.adapter`; the queue itself stays files, because it is execution and not state.

Run the scripts as modules (`python -m agent_codex.worker`), with the directory that holds `agent_codex` as the current
one or on PYTHONPATH. Run as plain files they would put their own directory in front of the module search path, and
`queue.py` would take the place of the standard library's `queue`.
"""
