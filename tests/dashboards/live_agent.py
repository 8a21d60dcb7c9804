"""An agent that asks the policy once: it gives the dashboards the metrics of programs."""

import json
import os
from urllib.request import Request, urlopen

body = {"model": "policy", "prompt": json.loads(os.environ["SLIPSTREAM_PROMPT"])["text"]}
headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
request = Request(f"{os.environ['OPENAI_BASE_URL']}/completions", json.dumps(body).encode(), headers)
with urlopen(request, timeout=60) as reply:
    print(json.load(reply)["choices"][0]["text"])
