{{/* Guards on what computes: ranks, devices, engines. */}}

{{- define "slipstream.guards.ranks" -}}
{{- $gpus := int .Values.learner.gpu.count -}}
{{- $device := include "slipstream.run.value" (list . "learner.device" "auto") -}}
{{- $ranks := include "slipstream.learner.ranks" . -}}
{{- $asked := (include "slipstream.run.look" (list . "learner.ranks") | fromJson).value -}}
{{- if and (not (kindIs "invalid" $asked)) (ne (toString $asked) $ranks) }}
the run's learner.ranks is {{ $asked }}, and the chart starts {{ .Values.learner.nodes }} × {{ include "slipstream.learner.ranksPerNode" . }} = {{ $ranks }}: leave learner.ranks out of the run, or change learner.nodes, learner.gpu.count or (on CPUs) learner.ranksPerNode
{{- end }}
{{- if and (eq $device "cuda") (eq $gpus 0) }}
the run's learner.device is cuda, and learner.gpu.count is 0: set it to the GPUs of a node, or the run's learner.device to auto
{{- end }}
{{- if and (eq $device "cpu") (gt $gpus 0) }}
the run's learner.device is cpu, and learner.gpu.count is {{ $gpus }}: set it to 0, or the run's learner.device to auto
{{- end }}
{{- if and (gt $gpus 0) (gt (int .Values.learner.ranksPerNode) 1) }}
learner.ranksPerNode is {{ .Values.learner.ranksPerNode }}, and a rank is a GPU: leave it at 1, and set learner.gpu.count
{{- end }}
{{- $engine := include "slipstream.run.value" (list . "rollout.engine" "vllm") -}}
{{- $parallel := include "slipstream.run.value" (list . "rollout.tensor_parallel" 1) -}}
{{- with (include "slipstream.run.look" (list . "rollout.nodes") | fromJson).value }}
the run's rollout.nodes is {{ . }}, which the chart says to each pool: leave it out of the run, and set nodes in rollout.defaults or in a pool
{{- end }}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $count := int .gpu.count -}}
{{- $nodes := int .nodes -}}
{{- if gt $nodes 1 -}}
{{- include "slipstream.guards.spanning" (list $ .) }}
{{- else if and (gt $count 0) (ne $engine "vllm") }}
pool {{ .name }} has {{ $count }} GPUs, and the run's rollout.engine is {{ $engine }}, which uses none: set gpu.count to 0 in rollout.defaults or in the pool
{{- else if and (gt $count 0) (ne (toString $count) $parallel) }}
pool {{ .name }} has {{ $count }} GPUs a worker, and the run's rollout.tensor_parallel is {{ $parallel }}: set the pool's gpu.count to {{ $parallel }}, or share it out over pods with the pool's nodes
{{- else if and (eq $count 0) (ne $parallel "1") }}
pool {{ .name }} has no GPU, and the run's rollout.tensor_parallel is {{ $parallel }}: set the pool's gpu.count to {{ $parallel }}, or the run's rollout.tensor_parallel to 1
{{- end }}
{{- if and (eq (include "slipstream.run.value" (list $ "rollout.device" "auto")) "cuda") (eq $count 0) }}
pool {{ .name }} has no GPU, and the run's rollout.device is cuda: set the pool's gpu.count to {{ $parallel }}, or the run's rollout.device to auto
{{- end }}
{{- if and (gt $gpus 0) (eq $count 0) }}
pool {{ .name }} has no GPU and the learner has: weights go between GPUs or between CPUs; set learner.gpu.count to 0, or the pool's gpu.count to {{ $parallel }}
{{- else if and (eq $gpus 0) (gt $count 0) }}
pool {{ .name }} has GPUs and the learner has none: weights go between GPUs or between CPUs; set the pool's gpu.count to 0, or learner.gpu.count to the GPUs of a node
{{- end }}
{{- end }}
{{- end -}}

{{/* A pool whose workers are several pods. Takes (list $ POOL). */}}
{{- define "slipstream.guards.spanning" -}}
{{- $pool := index . 1 -}}
{{- $engine := include "slipstream.run.value" (list (index . 0) "rollout.engine" "vllm") -}}
{{- $parallel := include "slipstream.run.value" (list (index . 0) "rollout.tensor_parallel" 1) -}}
{{- $gpus := mul $pool.nodes $pool.gpu.count -}}
{{- if ne $engine "vllm" }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes, and the run's rollout.engine is {{ $engine }}, which stays in one pod: set the pool's nodes to 1
{{- else if eq (int $pool.gpu.count) 0 }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes and no GPU: set the pool's nodes to 1, or its gpu.count to the GPUs of a node
{{- else if ne (toString $gpus) $parallel }}
pool {{ $pool.name }} has {{ $pool.nodes }} × {{ $pool.gpu.count }} = {{ $gpus }} GPUs a worker, and the run's rollout.tensor_parallel is {{ $parallel }}: set the run's to {{ $gpus }}, or the pool's nodes and gpu.count
{{- end }}
{{- $name := printf "%s-rollout-%s" (include "slipstream.fullname" (index . 0)) $pool.name -}}
{{- if gt (len $name) 48 }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes, and the name of its LeaderWorkerSet, {{ $name }}, is longer than 48: shorten the pool's name or set fullnameOverride
{{- end }}
{{- $lora := (include "slipstream.run.look" (list (index . 0) "learner.lora") | fromJson).value -}}
{{- $half := eq (include "slipstream.run.value" (list (index . 0) "model.dtype" "float32")) "bfloat16" -}}
{{- $serve := include "slipstream.run.value" (list (index . 0) "learner.lora.serve" (ternary "adapter" "merged" $half)) -}}
{{- if and (kindIs "map" $lora) (eq $serve "adapter") }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes, and the run's learner.lora.serve is adapter{{ if not (hasKey $lora "serve") }} (the default with bfloat16){{ end }}, which works in one pod: set it to merged, or the pool's nodes to 1
{{- end }}
{{- end -}}

{{- define "slipstream.guards.learner" -}}
{{- $checkpoints := .Values.learner.checkpoints -}}
{{- if and (gt (int .Values.learner.nodes) 1) (not $checkpoints.existingClaim) (not (has "ReadWriteMany" $checkpoints.accessModes)) }}
learner.nodes is {{ .Values.learner.nodes }}, and all of them write one checkpoint: set learner.checkpoints.accessModes to [ReadWriteMany] with a storage class that has it, or existingClaim to such a claim
{{- end }}
{{- end -}}
