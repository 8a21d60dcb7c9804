"""Agents of the user as child processes: they sample from the policy by an OpenAI-compatible endpoint.

environment   one episode: a session at the endpoint, and a child process that has its key
endpoint      the HTTP server of an actor; FastAPI is imported here
answers       one request: its turns, for as long as the client stays, at once or streamed
sessions      whose request it is, and how many there may be
chat, text    from a request of /chat/completions and of /completions to a turn of the policy
child         the process: its environment variables, its folder, its output and its end
trial         runs a program once with fixed answers, for `slipstream validate --try`
record        what the rewards see of an episode
"""
