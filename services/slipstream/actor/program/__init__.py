"""The environment `program`: an agent runs as a child process, and samples by an OpenAI-compatible endpoint.

environment   one episode: a session at the endpoint, and a child process that has its key
endpoint      the HTTP server of an actor; FastAPI is imported here
answers       one request: its turns, for as long as the client stays, at once or streamed
exchange      one request, and the replies that its client did not get
sessions      the episode of a request, and the bound on concurrent requests
requests      the fields of a request, checked
text          conversations of /completions; those of /chat/completions are in actor/chat
child         the process: its environment variables, its folder, its output and its end
trial         runs a program once with fixed answers, for `slipstream validate --try`
record        what the rewards see of an episode
"""
