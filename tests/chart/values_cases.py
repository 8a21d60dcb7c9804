"""Values that the schema accepts, and values that it refuses, with their paths."""

from typing import Any

Values = dict[str, Any]
KEDA = "/autoscaling/keda"
RULE_LABELS = "/monitoring/rules/additionalRuleLabels"
DIGEST = "sha256:" + "0" * 64
GOOD: list[Values] = [
    {},
    {"run": {"config": "name: a\nmodel: {tiny: {}}\n", "name": "addition-2"}},
    {"image": {"registry": "registry.example:5000/mirror", "tag": "1.2.0-rc.1", "pullSecrets": ["a", "b"]}},
    {"learner": {"image": {"digest": DIGEST}, "nodes": 4, "gpu": {"resource": "amd.com/gpu", "count": 8}}},
    {"learner": {"resources": {"requests": {"cpu": 2, "memory": "1.5Gi"}, "limits": {"memory": "2Gi"}}}},
    {"rollout": {"pools": [{"name": "a"}, {"name": "b-2", "spot": True, "gpu": {"count": 0}}]}},
    {"rollout": {"defaults": {"nodes": 2}, "pools": [{"name": "a", "nodes": 4}]}},
    {"rollout": {"pools": [{"name": "a", "autoscaling": {"kind": "keda", "minReplicas": 0}}]}},
    {"rollout": {"defaults": {"podDisruptionBudget": {"maxUnavailable": "50%"}, "drainSeconds": None}}},
    {"verifier": {"runtimeClassName": "gvisor", "extraEnv": [{"name": "A", "value": "1"}]}},
    {
        "verifier": {
            "http": {"enabled": True, "port": 9000},
            "code": {"mine.py": "a = 1"},
            "gpu": {"count": 1},
        }
    },
    {"verifier": {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]}},
    {
        "console": {
            "enabled": True,
            "token": {"existingSecret": "a", "key": "console.token"},
            "allowScaling": True,
            "apiServer": {"ports": [443], "peers": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
            "hostNames": ["runs.example.com", "console"],
            "peers": [{"podSelector": {}}],
            "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "a"},
        }
    },
    {"replay": {"extraVolumes": [{"name": "prompts", "persistentVolumeClaim": {"claimName": "p"}}]}},
    {"redis": {"mode": "external", "external": {"host": "redis.example", "port": 6380, "authorityKey": ""}}},
    {"network": {"prometheus": {"peers": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}}},
    {"network": {"ipFamilies": ["IPv6", "IPv4"], "ephemeralPorts": "", "dns": {"ports": [53, 5353]}}},
    {"redis": {"external": {"host": "fd00::1", "tls": False, "allowPlaintext": True}}},
    {"learner": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}},
    {
        "model": {
            "download": {"endpoint": "http://[fd00::1]:80/hub", "proxy": "http://a:1", "noProxy": "a,.b"}
        }
    },
    {"monitoring": {"podMonitors": {"enabled": True, "interval": "1m30s"}, "rules": {"from": "elsewhere"}}},
    {
        "learner": {
            "workload": "LeaderWorkerSet",
            "labels": {"kueue.x-k8s.io/queue-name": "a"},
            "schedulerName": "kai-scheduler",
            "hostNetwork": True,
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["fd00::a"], "options": [{"name": "ndots", "value": "2"}]},
            "gpu": {"resource": ""},
            "resources": {"claims": [{"name": "gpus", "request": "all"}]},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
            "envFrom": [{"prefix": "A_", "configMapRef": {"name": "a", "optional": True}}],
            "initContainers": [{"name": "a", "image": "a:1", "restartPolicy": "Always"}],
        }
    },
    {"network": {"nodeCIDRs": ["10.0.0.0/16", "fd00::/64"]}},
    {
        "rollout": {
            "networkPolicy": {"extraIngress": [{"ports": [{"protocol": "TCP", "port": 1, "endPort": 9}]}]}
        }
    },
    {"teacher": {"networkPolicy": {"extraEgress": [{"to": [{"ipBlock": {"cidr": "::/0"}}]}, {}]}}},
    {"monitoring": {"rules": {"runbookUrl": "http://wiki/a.html", "additionalRuleLabels": {"team_1": "a"}}}},
    {"extraObjects": ["kind: {{ .Release.Name }}", {"apiVersion": "v1", "kind": "ConfigMap"}]},
]
# (values, path of the refused value, message)
BAD: list[tuple[Values, str, str]] = [
    # a key that does not exist, at every depth
    ({"replicas": 1}, "", "'replicas' not allowed"),
    ({"learner": {"replicas": 2}}, "/learner", "'replicas' not allowed"),
    ({"learner": {"gpu": {"counts": 2}}}, "/learner/gpu", "'counts' not allowed"),
    ({"rollout": {"replicas": 2}}, "/rollout", "'replicas' not allowed"),
    ({"rollout": {"pools": [{"name": "a", "gpus": 1}]}}, "/rollout/pools/0", "'gpus' not allowed"),
    ({"rollout": {"defaults": {"autoscaling": {"max": 1}}}}, "/rollout/defaults/autoscaling", "'max'"),
    ({"redis": {"auth": {"password": "secret"}}}, "/redis/auth", "'password' not allowed"),
    ({"redis": {"external": {"password": "secret"}}}, "/redis/external", "'password' not allowed"),
    ({"console": {"hostNames": ["https://a"]}}, "/console/hostNames/0", "does not match pattern"),
    ({"console": {"hostNames": ["a:8080"]}}, "/console/hostNames/0", "does not match pattern"),
    ({"console": {"replicas": 2}}, "/console", "'replicas' not allowed"),
    ({"console": {"apiServer": {"ports": []}}}, "/console/apiServer/ports", "minItems"),
    ({"tls": {"secrets": {"agent": "a"}}}, "/tls/secrets", "'agent' not allowed"),
    ({"securityContext": {"allowPrivilegeEscalations": False}}, "/securityContext", "not allowed"),
    ({"verifier": {"affinity": {"podAffinities": {}}}}, "/verifier/affinity", "not allowed"),
    # a value of another type
    ({"run": {"config": {"name": "a"}}}, "/run/config", "got object, want string"),
    ({"replay": {"replicas": "2"}}, "/replay/replicas", "got string, want integer"),
    ({"image": {"tag": 1.0}}, "/image/tag", "want string"),
    ({"image": {"pullSecrets": [{"name": "a"}]}}, "/image/pullSecrets/0", "got object, want string"),
    ({"tests": {"enabled": "yes"}}, "/tests/enabled", "want boolean"),
    ({"rollout": {"pools": {"name": "a"}}}, "/rollout/pools", "want array"),
    ({"verifier": {"nodeSelector": {"a": 1}}}, "/verifier/nodeSelector/a", "want string"),
    ({"learner": {"podAnnotations": {"a": True}}}, "/learner/podAnnotations/a", "want string"),
    ({"verifier": {"extraEnv": [{"name": "A", "value": 1}]}}, "/verifier/extraEnv/0/value", "want string"),
    ({"rollout": {"pools": [{"name": "a", "hostIPC": "yes"}]}}, "/rollout/pools/0/hostIPC", "boolean"),
    ({"tests": {"hostNetwork": True}}, "/tests", "'hostNetwork' not allowed"),
    ({"learner": {"labels": {"app.kubernetes.io/name": "a"}}}, "", "app.kubernetes.io/name"),
    ({"redis": {"resourceClaims": [{"name": "a"}]}}, "/redis/resourceClaims/0", "oneOf"),
    ({"redis": {"envFrom": [{"prefix": "A_"}]}}, "/redis/envFrom/0", "oneOf"),
    # a value outside of an enumeration
    ({"learner": {"workload": "Job"}}, "/learner/workload", "one of"),
    ({"replay": {"dnsPolicy": "Cluster"}}, "/replay/dnsPolicy", "one of"),
    ({"replay": {"initContainers": [{"name": "a", "image": "a", "restartPolicy": "Never"}]}},
     "/replay/initContainers/0/restartPolicy", "value must be 'Always'"),
    ({"tls": {"mode": "mtls"}}, "/tls/mode", "one of"),
    ({"model": {"mode": "hub"}}, "/model/mode", "one of"),
    ({"model": {"cache": {"kind": "pvc"}}}, "/model/cache/kind", "one of"),
    ({"redis": {"mode": "cluster"}}, "/redis/mode", "one of"),
    ({"redis": {"appendFsync": "no"}}, "/redis/appendFsync", "one of"),
    ({"image": {"pullPolicy": "always"}}, "/image/pullPolicy", "one of"),
    ({"monitoring": {"rules": {"from": "operator"}}}, "/monitoring/rules/from", "one of"),
    ({"monitoring": {"podMonitors": {"enabled": "on"}}}, "/monitoring/podMonitors/enabled", "boolean"),
    ({"autoscaling": {"keda": {"fallback": {"behavior": "zero"}}}}, f"{KEDA}/fallback/behavior", "one of"),
    # a number out of its range
    ({"learner": {"nodes": 0}}, "/learner/nodes", "minimum"),
    ({"replay": {"replicas": 0}}, "/replay/replicas", "minimum"),
    ({"rollout": {"pools": [{"name": "a", "nodes": 0}]}}, "/rollout/pools/0/nodes", "minimum"),
    ({"verifier": {"replicas": -1}}, "/verifier/replicas", "minimum"),
    ({"learner": {"stopSeconds": 0}}, "/learner/stopSeconds", "minimum"),
    ({"redis": {"external": {"port": 70000}}}, "/redis/external/port", "maximum"),
    ({"probes": {"liveness": {"failureThreshold": 0}}}, "/probes/liveness/failureThreshold", "minimum"),
    ({"podSecurityContext": {"runAsUser": 0}}, "/podSecurityContext/runAsUser", "minimum"),
    ({"rollout": {"pools": []}}, "/rollout/pools", "minItems"),
    ({"network": {"egress": {"cidrs": []}}}, "/network/egress/cidrs", "minItems"),
    # a text of a wrong form
    ({"fullnameOverride": "Slip_Stream"}, "/fullnameOverride", "pattern"),
    ({"rollout": {"pools": [{"name": "on_demand"}]}}, "/rollout/pools/0/name", "pattern"),
    ({"learner": {"image": {"digest": "0" * 64}}}, "/learner/image/digest", "pattern"),
    ({"learner": {"image": {"repository": "Slipstream/Learner"}}}, "/learner/image/repository", "pattern"),
    ({"learner": {"sharedMemory": "8GB"}}, "/learner/sharedMemory", "pattern"),
    ({"learner": {"gpu": {"resource": "gpu"}}}, "/learner/gpu/resource", "pattern"),
    ({"tls": {"trustDomain": "spiffe://a"}}, "/tls/trustDomain", "pattern"),
    ({"tls": {"certManager": {"duration": "90 days"}}}, "/tls/certManager/duration", "pattern"),
    ({"run": {"name": "a/b"}}, "/run/name", "pattern"),
    ({"data": {"mountPath": "data"}}, "/data/mountPath", "pattern"),
    ({"autoscaling": {"prometheus": {"address": "here:9090"}}}, "/autoscaling/prometheus/address", "pattern"),
    ({"monitoring": {"podMonitors": {"interval": "10"}}}, "/monitoring/podMonitors/interval", "pattern"),
    ({"monitoring": {"rules": {"runbookUrl": "docs/alerts.md"}}}, "/monitoring/rules/runbookUrl", "pattern"),
    ({"monitoring": {"rules": {"runbookUrl": "https://a/b#c"}}}, "/monitoring/rules/runbookUrl", "pattern"),
    ({"monitoring": {"rules": {"additionalRuleLabels": {"a-b": "c"}}}}, RULE_LABELS, "'a-b' not allowed"),
    ({"network": {"ephemeralPorts": "32768"}}, "/network/ephemeralPorts", "pattern"),
    ({"network": {"ipFamilies": ["IPv5"]}}, "/network/ipFamilies/0", "one of"),
    ({"network": {"dns": {"ports": []}}}, "/network/dns/ports", "minItems"),
    ({"redis": {"external": {"host": "[fd00::1]"}}}, "/redis/external/host", "pattern"),
    ({"model": {"download": {"endpoint": "hub.example"}}}, "/model/download/endpoint", "pattern"),
    ({"model": {"download": {"proxy": "http://me:secret@a:1"}}}, "/model/download/proxy", "pattern"),
    ({"network": {"egress": {"cidrs": ["10.0.0.0"]}}}, "/network/egress/cidrs/0", "pattern"),
    ({"verifier": {"extraEnv": [{"name": "1A"}]}}, "/verifier/extraEnv/0/name", "pattern"),
    ({"actor": {"autoscaling": {"by": "answers"}}}, "/actor/autoscaling/by", "one of"),
    ({"verifier": {"autoscaling": {"by": "queue"}}}, "/verifier/autoscaling/by", "one of"),
    ({"verifier": {"http": {"port": 443}}}, "/verifier/http/port", "minimum"),
    ({"verifier": {"code": {"mine": "a = 1"}}}, "/verifier/code", "'mine' not allowed"),
    ({"verifier": {"code": {"../mine.py": "a = 1"}}}, "/verifier/code", "not allowed"),
    ({"verifier": {"judge": {"key": "secret"}}}, "/verifier/judge", "'key' not allowed"),
    ({"verifier": {"scratchSize": "4GB"}}, "/verifier/scratchSize", "pattern"),
    ({"network": {"nodeCIDRs": ["10.0.0.0"]}}, "/network/nodeCIDRs/0", "pattern"),
    ({"redis": {"dnsConfig": {"nameservers": ["dns.example"]}}}, "/redis/dnsConfig/nameservers/0", "pattern"),
    ({"redis": {"networkPolicy": {"extraEgress": [{"from": []}]}}},
     "/redis/networkPolicy/extraEgress/0", "'from' not allowed"),
    ({"learner": {"networkPolicy": {"extraIngress": [{"ports": [{"endPort": 9}]}]}}},
     "/learner/networkPolicy/extraIngress/0/ports/0", "port"),
    ({"commonLabels": {"app.kubernetes.io/component": "a"}}, "", "app.kubernetes.io/component"),
    ({"commonAnnotations": {"checksum/code": "a"}}, "", "checksum/code"),
    # a missing required value
    ({"redis": {"podSecurityContext": None}}, "/redis", "missing property 'podSecurityContext'"),
    ({"model": {"initResources": None}}, "/model", "missing property 'initResources'"),
    ({"learner": {"check": {"resources": None}}}, "/learner/check", "missing property 'resources'"),
    ({"autoscaling": None}, "", "missing property 'autoscaling'"),
    ({"verifier": {"sidecars": [{"name": "a"}]}}, "/verifier/sidecars/0", "'image'"),
    ({"rollout": {"pools": [{"replicas": 1}]}}, "/rollout/pools/0", "'name'"),
    ({"verifier": {"extraEnv": [{"value": "1"}]}}, "/verifier/extraEnv/0", "'name'"),
    ({"extraObjects": [{"kind": "ConfigMap"}]}, "/extraObjects/0", "'apiVersion'"),
]  # fmt: skip
