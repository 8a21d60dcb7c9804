"""Values that cannot work, with the messages of the chart."""

from typing import Any

Values = dict[str, Any]

TINY_RUN = "model: {tiny: {}}\n"
FILE_RUN = "data: {kind: file, path: /data/train.jsonl}\n"
GIVEN = dict.fromkeys(("learner", "rollout", "actor", "verifier", "replay", "redis"), "a")
DOWNLOAD: Values = {"mode": "download", "download": {"repository": "example/policy", "revision": "4f2c9d1"}}
HUB = {"egress": {"huggingface": True}}
SCRAPED = {"podMonitors": {"enabled": True}, "rules": {"from": "chart"}}
PROMETHEUS = {"prometheus": {"address": "http://prometheus:9090"}}
BASE: Values = {"run": {"config": TINY_RUN}, "redis": {"auth": {"existingSecret": "password"}}}


def pool(**values: Any) -> Values:
    """Return values with one pool."""
    return {"rollout": {"pools": [{"name": "a", **values}]}}


def scaled(kind: str, **values: Any) -> Values:
    """Return values with one autoscaled pool, and everything that its autoscaler needs."""
    scaling = {"kind": kind, "minReplicas": 1, **values}
    return {**pool(autoscaling=scaling), "monitoring": SCRAPED, "autoscaling": PROMETHEUS}


def download(**values: Any) -> Values:
    """Return values with a downloaded model and settings of the download."""
    return {**DOWNLOAD, "download": {**DOWNLOAD["download"], **values}}


def mounted(path: str) -> Values:
    """Return the values of a component with a volume of the user at a path."""
    return {
        "extraVolumes": [{"name": "a", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "a", "mountPath": path}],
    }


def run(text: str) -> Values:
    """Return values with another run."""
    return {"run": {"config": text}}


def console(learner: Values, **values: Any) -> Values:
    """Return values with a console that has its token."""
    return {"learner": learner, "console": {"enabled": True, **TOKEN, **values}}


def rewarded(rewards: str, **verifier: Any) -> Values:
    """Return values with a run with these rewards, and a verifier."""
    return {**run(f"{TINY_RUN}rewards: [{rewards}]\n"), "verifier": verifier}


MODEL = "{name: reward_model, path: /models/reward}"
MODELS = {"existingClaim": "models"}
VERIFIER_IMAGE = {"repository": "slipstream/verifier"}
JUDGE = "{name: judge, url: https://judge.example/v1, model: m}"
KEYED = "{name: judge, url: https://judge.example/v1, model: m, api_key_file: /run/secrets/judge/key}"
CALLS_PYTHON = (
    f"{TINY_RUN}data: {{kind: addition, environment: {{kind: chat_tools, tools: [{{kind: python}}]}}}}\n"
)
MIXES_PYTHON = (
    f"{TINY_RUN}data: {{kind: mixture, of: [{{kind: addition}}, "
    "{kind: sort_digits, environment: {kind: chat_tools, tools: [{kind: python}]}}]}\n"
)
MCP = f"{TINY_RUN}data: {{kind: addition, environment: {{kind: chat_tools, tools: [{{kind: mcp, %s}}]}}}}\n"
MIXES_MCP = MIXES_PYTHON.replace("kind: python", "kind: mcp, command: [/usr/bin/uvx, a-server]")
PROGRAM = f"{TINY_RUN}data: {{kind: addition, environment: {{kind: program, command: %s}}}}\n"
OPENENV = f"{TINY_RUN}data: {{kind: addition, environment: {{kind: openenv, %s}}}}\n"
MIXES_OPENENV = MIXES_PYTHON.replace("{kind: chat_tools, tools: [{kind: python}]}", "{kind: openenv, %s}")
DISTILS = f"{TINY_RUN}algorithm: {{distillation: {{}}}}\n"
TAUGHT = f"{DISTILS}teacher: {{path: /models/teacher}}\n"
ANYWHERE = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]

SHARED = {"checkpoints": {"accessModes": ["ReadWriteMany"]}}
TOKEN = {"token": {"existingSecret": "token"}}

BESIDE = {"name": "a", "image": "a:1"}
ON_NODE = {"hostNetwork": True}


# (values merged over BASE, the message of the only problem)
CASES: tuple[tuple[Values, str], ...] = (
    (
        console(SHARED, token={"existingSecret": ""}),
        "console.token.existingSecret is empty: `kubectl create secret generic demo-console-token",
    ),
    (console({}), "is [ReadWriteOnce], a claim that one node can mount: set it to [ReadWriteMany]"),
    (
        console({"checkpoints": {"accessModes": ["ReadWriteOncePod"]}}, besideLearner=True),
        "is [ReadWriteOncePod], a claim that no second pod can mount",
    ),
    (
        console(SHARED, ingress={"enabled": True}, peers=[{"podSelector": {}}]),
        "console.ingress is enabled, and console.hostNames is empty",
    ),
    (
        console(SHARED, ingress={"enabled": True}, hostNames=["a.example"]),
        "console.ingress is enabled, and the NetworkPolicies let its controller reach no pod",
    ),
    (
        {**console(SHARED), "tls": {"mode": "secrets", "secrets": {**GIVEN, "probe": "a"}}},
        "tls.secrets.console is empty",
    ),
    (
        console(SHARED, serviceAccount={"create": False}),
        "console.serviceAccount is not created and has no name",
    ),
    (
        console(SHARED, allowScaling=True),
        "console.allowScaling is true, and console.allowControl is false",
    ),
    (console(SHARED, image={"tag": "latest"}), "the tag of console.image is latest"),
    (
        console(SHARED, **mounted("/var/lib/slipstream")),
        "console.extraVolumeMounts mounts a at /var/lib/slipstream, which is taken",
    ),
    (
        console(SHARED, sidecars=[{**BESIDE, "ports": [{"containerPort": 8080}]}]),
        "console.sidecars has a container a with the port 8080",
    ),
    ({"fullnameOverride": "a" * 41}, "set fullnameOverride to at most 40"),
    (run(" \n"), "--set-file run.config="),
    (run("a: ["), "is not a YAML mapping"),
    (run("- 1"), "is not a YAML mapping"),
    (run(DISTILS), "has algorithm.distillation and no teacher.path"),
    (run(TAUGHT), "/models/teacher, where the teacher has no volume: set teacher.models.existingClaim"),
    (
        {**run(TAUGHT), "teacher": {"models": {"existingClaim": "a", "hostPath": "/a"}}},
        "teacher.models has an existingClaim and a hostPath",
    ),
    (
        {
            **run(f"{DISTILS}teacher: {{path: /models/teacher, device: cuda}}\n"),
            "teacher": {"models": MODELS, "gpu": {"count": 0}},
        },
        "teacher.device is cuda, and teacher.gpu.count is 0",
    ),
    (
        {
            **run(f"{DISTILS}teacher: {{path: /models/teacher, device: cpu}}\n"),
            "teacher": {"models": MODELS, "gpu": {"count": 1}},
        },
        "teacher.device is cpu, and teacher.gpu.count is 1",
    ),
    (
        {**run(TAUGHT), "teacher": {"models": MODELS, "gpu": {"count": 2}}},
        "teacher.gpu.count is 2, and a teacher computes on one GPU",
    ),
    (
        {
            **run(TAUGHT),
            "teacher": {"models": MODELS, "autoscaling": {"enabled": True, "minReplicas": 9}},
            "autoscaling": PROMETHEUS,
        },
        "teacher.autoscaling.minReplicas is 9",
    ),
    (
        {**run(TAUGHT), "teacher": {"models": MODELS, "autoscaling": {"enabled": True}}},
        "teacher.autoscaling is enabled, and KEDA does not know Prometheus",
    ),
    (
        {
            **run(f"{TAUGHT}rollout: {{group_size: 1}}\n"),
            "teacher": {"models": MODELS, "autoscaling": {"enabled": True}},
            "autoscaling": PROMETHEUS,
        },
        "at most 8 × 1 = 8 completions at all teachers together (the run's teacher.requests, learner."
        "groups_per_step at most, × rollout.group_size), and 3 teachers hold 48 (targetCompletions each): "
        "raise the run's teacher.requests to 49, or lower",
    ),
    (
        {
            **run(TAUGHT),
            "teacher": {"models": MODELS, "autoscaling": {"enabled": True, "targetCompletions": 32}},
            "autoscaling": PROMETHEUS,
        },
        "at most 8 × 8 = 64 completions at all teachers",
    ),
    (
        {
            **run(f"{TAUGHT}learner: {{groups_per_step: 4}}\n"),
            "teacher": {"models": MODELS, "autoscaling": {"enabled": True}},
            "autoscaling": PROMETHEUS,
        },
        "raise the run's teacher.requests and learner.groups_per_step to 7, or lower",
    ),
    (
        {**run(TAUGHT), "teacher": {"models": MODELS, "image": {"tag": "latest"}}},
        "teacher.image.digest",
    ),
    (
        {
            **run(TAUGHT),
            "teacher": {"models": MODELS},
            "tls": {"mode": "secrets", "secrets": {**GIVEN, "probe": "a"}},
        },
        "tls.secrets.teacher is empty",
    ),
    (
        run(MCP % "url: 'http://tools.example/mcp'"),
        "tool server is http://tools.example/mcp, and the NetworkPolicies let actors out to nothing",
    ),
    (
        run(MCP % "command: [npx, a-server]"),
        "the run's tool server is started by npx, which the image slipstream/services has not",
    ),
    (run(MIXES_MCP), "the run's tool server is started by uvx, which the image slipstream/services has not"),
    *(
        (
            run(MCP % f"url: '{url}'"),
            f"tool server is {url}, and the NetworkPolicies let actors out to nothing",
        )
        for url in (
            "http://localhost-tools:8000/mcp",
            "http://127.0.0.1.tools.example/mcp",
            "http://127.0.0.1@tools.example/mcp",
            "http://localhost:8000@tools.example/mcp",
            "http://[::1:2]:8000/mcp",
        )
    ),
    (
        run(MCP % "command: [/usr/bin/env, -i, HOME=/tmp, A=b, npx, a-server]"),
        "the run's tool server is started by npx, which the image slipstream/services has not",
    ),
    (
        run(OPENENV % "url: 'http://games.example:8000'"),
        "the run's data.environment.url is http://games.example:8000, and the NetworkPolicies let actors out "
        "to nothing but the release: set actor.networkPolicy.extraEgress",
    ),
    (
        run(MIXES_OPENENV % "url: 'http://games.example:8000'"),
        "the run's data.of.1.environment.url is http://games.example:8000, and the NetworkPolicies",
    ),
    (
        run(OPENENV % "command: [uv, run, server, '{port}']"),
        "the run's environment (data.environment.command) is started by uv, which the image "
        "slipstream/services has not: set actor.image",
    ),
    (
        run(MIXES_OPENENV % "command: [docker, run, server, '{port}']"),
        "the run's environment (data.of.1.environment.command) is started by docker, which the image",
    ),
    (
        run(PROGRAM % "[npx, an-agent]"),
        "the run's environment (data.environment.command) is started by npx, which the image",
    ),
    (
        run(PROGRAM % "[env, A=b, /usr/local/bin/node, agent.js]"),
        "the run's environment (data.environment.command) is started by node, which the image",
    ),
    (run(f"{TINY_RUN}verifier: {{device: cuda}}\n"), "verifier.device is cuda, and verifier.gpu.count is 0"),
    ({"learner": {"ranksPerNode": 2}}, "learner.ranksPerNode is 2, and a rank is a GPU"),
    (
        {**pool(nodes=2, gpu={"count": 0}), "learner": {"gpu": {"count": 0}}},
        "2 nodes and no GPU",
    ),
    (
        {**run("rollout: {tensor_parallel: 2}"), **pool(nodes=2), "fullnameOverride": "a" * 40},
        "is longer than 48: shorten the pool's name",
    ),
    (pool(gpu={"count": 0}), "has no GPU and the learner has"),
    ({"learner": {"gpu": {"count": 0}}}, "has GPUs and the learner has none"),
    ({"learner": {"nodes": 2}}, "accessModes to [ReadWriteMany]"),
    ({"model": {"mode": "volume"}}, "set one of them"),
    ({"model": {"mode": "volume", "volume": {"existingClaim": "a", "hostPath": "/a"}}}, "set one of them"),
    (
        {**run("seed: 1"), "model": {"mode": "download", "download": {"revision": "a"}}, "network": HUB},
        "set model.download.repository",
    ),
    (
        {**run("seed: 1"), "model": {"mode": "download", "download": {"repository": "a/b"}}, "network": HUB},
        "set model.download.revision",
    ),
    ({**run("seed: 1"), "model": DOWNLOAD}, "set network.egress.huggingface"),
    (
        {**run("seed: 1"), "model": download(proxy="http://proxy:3128"), "network": HUB},
        "set network.egress.peers to where the proxy is",
    ),
    (
        {**run("seed: 1"), "model": download(endpoint="http://[fd00:77::10]:8080"), "network": HUB},
        "network.egress.except closes fc00::/7: set network.egress.peers to where the mirror is",
    ),
    (
        {**run("seed: 1"), "model": download(endpoint="https://172.20.0.4/hub"), "network": HUB},
        "network.egress.except closes 172.16.0.0/12: set",
    ),
    (
        {**run("seed: 1"), "model": download(noProxy=".svc"), "network": HUB},
        "set model.download.proxy, or leave noProxy empty",
    ),
    (
        {
            **run("seed: 1"),
            "model": download(authority={"configMap": "a", "secret": "b"}),
            "network": HUB,
        },
        "names a configMap and a secret",
    ),
    ({"model": {"cache": {"kind": "claim"}}}, "set model.cache.existingClaim"),
    ({"model": {"cache": {"kind": "hostPath"}}}, "set model.cache.hostPath"),
    ({"verifier": {"image": {"tag": "latest"}}}, "verifier.image.digest"),
    ({"redis": {"image": {"tag": "8.4.1-alpine"}}}, "set 8.6.3 or newer"),
    ({"tls": {"certManager": {"issuerRef": {"name": "a"}}}}, "set createAuthority to false"),
    ({"tls": {"certManager": {"createAuthority": False}}}, "set issuerRef.name"),
    ({"tls": {"certManager": {"duration": "24h", "renewBefore": "24h"}}}, "to a third of the duration"),
    ({"tls": {"mode": "secrets", "secrets": GIVEN}}, "tls.secrets.probe is empty"),
    ({"redis": {"mode": "external", "external": {"existingSecret": "a"}}}, "set redis.external.host"),
    ({"redis": {"mode": "external", "external": {"host": "a"}}}, "set redis.external.existingSecret"),
    (
        {"redis": {"mode": "external", "external": {"host": "a", "existingSecret": "a", "tls": False}}},
        "set it to true, or redis.external.allowPlaintext to true",
    ),
    (
        {"redis": {"mode": "external", "external": {"host": "a", "allowPlaintext": True}}},
        "set redis.external.existingSecret",
    ),
    ({"redis": {"auth": {"existingSecret": ""}}}, "kubectl create secret generic demo-redis-password"),
    ({"redis": {"maxMemoryMiB": 3277}}, "set it to 3276 at most"),
    ({"redis": {"resources": {"limits": {"memory": "1G"}}}}, "set it to 762 at most"),
    ({"network": {"dns": {"peers": []}}}, "network.dns.peers is empty"),
    ({"network": {"ipFamilies": ["IPv6", "IPv4"]}}, "set it to PreferDualStack or RequireDualStack"),
    (
        {"network": {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "SingleStack"}},
        "network.ipFamilyPolicy is SingleStack",
    ),
    ({"network": {"ephemeralPorts": "60999-32768"}}, "which is no range of ports"),
    ({"network": {"ephemeralPorts": "32768-99999"}}, "which is no range of ports"),
    ({"network": {"ephemeralPorts": "16000-65535"}}, "rollouts would reach torch's store at 29400"),
    (
        {"network": {"prometheus": {"peers": []}}, "monitoring": {"podMonitors": {"enabled": True}}},
        "network.prometheus.peers is empty",
    ),
    (
        {"replay": {"serviceAccount": {"create": False}}},
        "replay.serviceAccount is not created and has no name",
    ),
    ({"learner": {"extraEnv": [{"name": "POD_IP", "value": "a"}]}}, "learner.extraEnv sets POD_IP"),
    (pool(extraEnv=[{"name": "SLIPSTREAM_RUN_DIR", "value": "a"}]), "rollout.pools[a].extraEnv sets SLIP"),
    (
        {**run("rollout: {tensor_parallel: 2}"), **pool(nodes=2, extraEnv=[{"name": "VLLM_HOST_IP"}])},
        "rollout.pools[a].extraEnv sets VLLM_HOST_IP, which the chart sets",
    ),
    ({"redis": {"extraEnv": [{"name": "A"}, {"name": "A"}]}}, "redis.extraEnv sets A two times"),
    ({"replay": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}}, "has a volume tmp"),
    (
        {"replay": {"extraVolumes": [{"name": "a", "emptyDir": {}}, {"name": "a", "emptyDir": {}}]}},
        "replay.extraVolumes has two volumes a",
    ),
    (pool(extraVolumeMounts=[{"name": "b", "mountPath": "/b"}]), "add it to rollout.pools[a].extraVolumes"),
    ({"learner": mounted("/tmp/")}, "learner.extraVolumeMounts mounts a at /tmp/, which is taken"),
    ({"verifier": mounted("/etc/slipstream/extra")}, "at /etc/slipstream/extra, which is taken"),
    ({"replay": mounted("/data"), "data": {"existingClaim": "prompts"}}, "at /data, which is taken"),
    ({"redis": mounted("/data")}, "redis.extraVolumeMounts mounts a at /data, which is taken"),
    ({"data": {"existingClaim": "prompts", "mountPath": "/models"}}, "set it to another directory"),
    ({"data": {"existingClaim": "prompts", "mountPath": "/etc/slipstream/prompts"}}, "such as /data"),
    (
        {"monitoring": {"podMonitors": {"enabled": True, "interval": "30s", "scrapeTimeout": "1m"}}},
        "scrapeTimeout is 1m",
    ),
    (
        {"monitoring": {"rules": {"additionalRuleLabels": {"release": "prometheus"}}}},
        "additionalRuleLabels has release",
    ),
    ({"rollout": {"pools": [{"name": "a"}, {"name": "a"}]}}, "two pools named a"),
    ({"rollout": {"drainSeconds": 120}}, "rollout.drainSeconds has moved to actor.drainSeconds"),
    (pool(drainSeconds=20), "rollout.pools[a].drainSeconds has moved to actor.drainSeconds"),
    ({"rollout": {"marginSeconds": 9}}, "rollout.marginSeconds has moved to actor.marginSeconds"),
    (pool(spot=True), "set rollout.spot.nodeSelector"),
    (scaled("keda", minReplicas=3, maxReplicas=2), "above maxReplicas 2"),
    ({**scaled("keda"), "monitoring": {}}, "monitoring.rules.from is none"),
    ({**scaled("hpa"), "monitoring": {"rules": {"from": "chart"}}}, "nothing scrapes the pods"),
    (scaled("hpa", minReplicas=0), "which cannot leave zero"),
    ({**scaled("keda"), "autoscaling": {}}, "set autoscaling.prometheus.address"),
    (
        {
            **scaled("keda", maxReplicas=2),
            "autoscaling": {**PROMETHEUS, "keda": {"fallback": {"replicas": 3}}},
        },
        "lower autoscaling.keda.fallback.replicas",
    ),
    (
        {"verifier": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "verifier.autoscaling.minReplicas is 9",
    ),
    (
        {"actor": {"autoscaling": {"enabled": True, "by": "cpu", "minReplicas": 99}}},
        "actor.autoscaling.minReplicas is 99",
    ),
    ({"actor": {"autoscaling": {"enabled": True}}}, "is groups, and KEDA does not know"),
    (
        {
            "autoscaling": PROMETHEUS,
            "actor": {"autoscaling": {"enabled": True, "targetGroups": 240}},
        },
        "an actor samples at most 256 groups",
    ),
    ({"verifier": {"autoscaling": {"enabled": True, "by": "answers"}}}, "is answers, and KEDA does not know"),
    (
        {"verifier": {"http": {"enabled": True, "port": 9464, "peers": ANYWHERE}}},
        "verifier.http.port is 9464, which the verifier uses",
    ),
    ({"verifier": {"http": {"enabled": True}}}, "set verifier.http.peers"),
    ({"verifier": {"models": {"existingClaim": "a", "hostPath": "/a"}}}, "leave one of them empty"),
    ({"verifier": {"gpu": {"count": 1}}}, "no reward of the run is a model"),
    (rewarded(MODEL, models=MODELS), "set verifier.image.repository to slipstream/verifier"),
    (
        rewarded("{name: prm, kind: process_reward, path: /prm}"),
        "the run's reward prm is a model, and the image",
    ),
    (rewarded(MODEL, image=VERIFIER_IMAGE), "has path /models/reward, where the verifier has no volume"),
    (
        rewarded("{name: reward_model, path: models/reward}", image=VERIFIER_IMAGE, models=MODELS),
        "is nowhere in a pod: set verifier.models.existingClaim",
    ),
    (
        rewarded(
            "{name: reward_model, path: /models/a, device: 'cuda:0'}", image=VERIFIER_IMAGE, models=MODELS
        ),
        "has device cuda:0, and verifier.gpu.count is 0",
    ),
    (rewarded(JUDGE), "set verifier.judge.peers"),
    (
        rewarded(KEYED, judge={"peers": ANYWHERE}),
        "api_key_file /run/secrets/judge/key, where the verifier has no volume",
    ),
    (
        rewarded("{name: r, kind: custom, function: 'mine:r'}", code={"other.py": ""}),
        "--set-file 'verifier.code.mine\\.py=mine.py'",
    ),
    ({"verifier": {"code": {"math.py": ""}}}, "such as my_math.py"),
    (rewarded("{name: r, kind: custom, entry_point: mine}"), "is the entry point mine"),
    (rewarded("{name: code_tests}", runtimeClassName="gvisor"), "[rlimits, seccomp, gvisor]"),
    ({**run(CALLS_PYTHON), "verifier": {"runtimeClassName": "gvisor"}}, "[rlimits, seccomp, gvisor]"),
    ({**run(MIXES_PYTHON), "verifier": {"runtimeClassName": "gvisor"}}, "[rlimits, seccomp, gvisor]"),
    (
        {"verifier": {"code": {"a.py": ""}, "extraEnv": [{"name": "PYTHONPATH", "value": "/a"}]}},
        "verifier.extraEnv sets PYTHONPATH",
    ),
    (
        {"verifier": {**mounted("/code/"), "code": {"a.py": ""}}},
        "verifier.extraVolumeMounts mounts a at /code/, which is taken",
    ),
    (
        {"learner": {"sidecars": [{**BESIDE, "name": "learner"}]}},
        "learner.sidecars has a container learner, and another of the pod is called so",
    ),
    (
        pool(initContainers=[{**BESIDE, "name": "model"}]),
        "rollout.pools[a].initContainers has a container model, and another",
    ),
    (
        {"replay": {"initContainers": [BESIDE], "sidecars": [BESIDE]}},
        "replay.sidecars has a container a, and another",
    ),
    (
        {"tests": {"initContainers": [{**BESIDE, "name": "circle"}]}},
        "tests.initContainers has a container circle",
    ),
    (
        {"verifier": {"sidecars": [{**BESIDE, "ports": [{"containerPort": 9464}]}]}},
        "verifier.sidecars has a container a with the port 9464, which another of the pod has",
    ),
    (
        {"redis": {"sidecars": [{**BESIDE, "ports": [{"name": "redis", "containerPort": 1}]}]}},
        "redis.sidecars has a container a with the port 1 (redis), which another",
    ),
    (
        {
            "replay": {
                "initContainers": [{**BESIDE, "ports": [{"containerPort": 7}]}],
                "sidecars": [{**BESIDE, "name": "b", "ports": [{"containerPort": 7}]}],
            }
        },
        "replay.sidecars has a container b with the port 7, which another",
    ),
    (
        {"learner": {"sidecars": [{**BESIDE, "volumeMounts": [{"name": "b", "mountPath": "/b"}]}]}},
        "learner.sidecars has a container a that mounts b, and no volume is called so",
    ),
    (
        {
            "verifier": {
                "sidecars": [{**BESIDE, "volumeMounts": [{"name": "checkpoints", "mountPath": "/b"}]}]
            }
        },
        "verifier.sidecars has a container a that mounts checkpoints, and no volume is called so",
    ),
    (
        {"replay": {"extraVolumeMounts": [{"name": "data", "mountPath": "/b"}]}},
        "replay.extraVolumeMounts mounts data, and no volume is called so",
    ),
    (
        {"replay": {"sidecars": [{**BESIDE, "restartPolicy": "Always"}]}},
        "move the container to replay.initContainers",
    ),
    (
        {"learner": {"envFrom": [{"prefix": "SLIPSTREAM_", "secretRef": {"name": "a"}}]}},
        "learner.envFrom has the prefix SLIPSTREAM_",
    ),
    (
        {"learner": {"resourceClaims": [{"name": "a", "resourceClaimName": "b"}] * 2}},
        "learner.resourceClaims has two claims a",
    ),
    (
        {"learner": {"resources": {"claims": [{"name": "gpus"}]}}},
        "learner has a container that uses the claim gpus",
    ),
    (
        {"replay": {"sidecars": [{**BESIDE, "resources": {"claims": [{"name": "b"}]}}]}},
        "add it to replay.resourceClaims",
    ),
    (pool(gpu={"resource": ""}), "rollout.pools[a].gpu.count is 1, without gpu.resource"),
    (
        {"learner": {**ON_NODE, "dnsPolicy": "ClusterFirst"}, "network": {"nodeCIDRs": ["10.0.0.0/8"]}},
        "learner.dnsPolicy is ClusterFirst, which finds no Service",
    ),
    ({"redis": {"dnsPolicy": "None"}}, "set redis.dnsConfig.nameservers"),
    (pool(**ON_NODE), "rollout.pools[a].hostNetwork is true, and the NetworkPolicies"),
)

# values merged over BASE, with servers and programs that the actors have
REACHED: tuple[Values, ...] = (
    {
        **run(MCP % "url: 'http://tools.example/mcp'"),
        "actor": {"networkPolicy": {"extraEgress": [{"to": ANYWHERE}]}},
    },
    {**run(MCP % "url: 'http://tools.example/mcp'"), "network": {"policies": False}},
    run(MCP % "url: 'http://127.0.0.1:8000/mcp'"),
    run(MCP % "command: [python, server.py]"),
    run(MCP % "url: 'http://user@LOCALHOST/mcp'"),
    run(MCP % "url: 'http://[::1]:8000/mcp'"),
    run(MCP % "command: [env, A=npx, python, server.py]"),
    run(OPENENV % "url: 'http://localhost:8000'"),
    run(OPENENV % "command: [python, server.py, '{port}']"),
    {
        **run(OPENENV % "url: 'http://games.example:8000'"),
        "actor": {"networkPolicy": {"extraEgress": [{"to": ANYWHERE}]}},
    },
    run(PROGRAM % "['{python}', agent.py, npx]"),
    {**run(PROGRAM % "[npx, an-agent]"), "image": {"repository": "mine/all"}},
    {**run(MCP % "command: [npx, a-server]"), "actor": {"image": {"repository": "mine/actors"}}},
)

# (values merged over BASE that helm installs, the message of `slipstream validate`, also in a pod)
RUN_CASES: tuple[tuple[Values, str], ...] = (
    (run("stages: [{name: a, kind: rl}]"), "has `stages`"),
    (run("teacher: {address: 'a:1'}"), "teacher.address: is set in the run"),
    (run("run_dir: /x"), "run_dir: is set in the run, and the chart sets it"),
    (run("replay: {redis_url: null}"), "replay.redis_url: is set in the run"),
    (run("rpc: {plaintext: true}"), "plaintext is true, and tls is set"),
    (run("weights: {port: 1}"), "weights.port: is set in the run"),
    (run("learner: {ranks: 2}"), "1 × 1 = 1; leave it out of the run"),
    (
        {**run("learner: {device: cuda}"), **pool(gpu={"count": 0}), "learner": {"gpu": {"count": 0}}},
        "learner.device: is cuda, and the values' learner.gpu.count is 0",
    ),
    (run("learner: {device: cpu}"), "learner.device: is cpu, and the values' learner.gpu.count is 1"),
    (
        {**run("rollout: {device: cuda}"), **pool(gpu={"count": 0}), "learner": {"gpu": {"count": 0}}},
        "rollout.device is cuda",
    ),
    (pool(gpu={"count": 2}), "set the pool's gpu.count to 1"),
    (run("rollout: {tensor_parallel: 2}"), "set the pool's gpu.count to 2"),
    (run("rollout: {engine: emulated}"), "set gpu.count to 0"),
    (pool(nodes=2), "2 × 1 = 2 GPUs a worker, and the run's rollout.tensor_parallel is 1; set"),
    (
        {**run("rollout: {tensor_parallel: 2}"), **pool(nodes=2, gpu={"count": 2})},
        "2 × 2 = 4 GPUs a worker, and the run's rollout.tensor_parallel is 2",
    ),
    (
        {**run("rollout: {tensor_parallel: 2}"), "rollout": {"pools": [{"name": "a", "nodes": 3}]}},
        "3 × 1 = 3 GPUs a worker",
    ),
    ({**run("rollout: {engine: emulated}"), **pool(nodes=2)}, "emulated, which stays in one pod"),
    ({**run("rollout: {tensor_parallel: 1, nodes: 1}")}, "leave it out of the run, and set nodes in"),
    (
        {**run("rollout: {tensor_parallel: 2}\nlearner: {lora: {serve: adapter}}"), **pool(nodes=2)},
        "serve is adapter, which works in one pod",
    ),
    (
        {
            **run(
                "model: {tiny: {}, dtype: bfloat16}\n"
                "rollout: {tensor_parallel: 2}\n"
                "learner: {lora: {rank: 8}}\n"
            ),
            **pool(nodes=2),
        },
        "serve is adapter (the default with bfloat16), which works in one pod",
    ),
    (
        {**run("rollout: {tensor_parallel: 2}"), **pool(gpu={"count": 0}), "learner": {"gpu": {"count": 0}}},
        "has 0 GPUs a worker, and the run's rollout.tensor_parallel is 2",
    ),
    (run("model: {path: /models/a}"), "set the values' model.mode to volume or download"),
    (
        {**run("warmup: {steps: 1}"), "model": {"mode": "volume", "volume": {"existingClaim": "models"}}},
        "leave `warmup` out of the run",
    ),
    (
        {"model": DOWNLOAD, "network": HUB},
        "model.tiny: is in the run, and the values' model.mode",
    ),
    (run(TINY_RUN + FILE_RUN), "set the values' data.existingClaim"),
    (
        {**run(TINY_RUN + FILE_RUN), "data": {"existingClaim": "a", "mountPath": "/prompts"}},
        "is /data/train.jsonl, where replay has no volume",
    ),
    (run("verifier: {http_address: '0.0.0.0:1'}"), "verifier.http_address: is set in the run"),
)
