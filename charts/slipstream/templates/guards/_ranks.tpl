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
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $count := int .gpu.count -}}
{{- if and (gt $count 0) (ne $engine "vllm") }}
pool {{ .name }} has {{ $count }} GPUs, and the run's rollout.engine is {{ $engine }}, which uses none: set gpu.count to 0 in rollout.defaults or in the pool
{{- else if and (gt $count 0) (ne (toString $count) $parallel) }}
pool {{ .name }} has {{ $count }} GPUs a worker, and the run's rollout.tensor_parallel is {{ $parallel }}: set the pool's gpu.count to {{ $parallel }} (an engine stays in one pod)
{{- else if and (eq $count 0) (ne $parallel "1") }}
pool {{ .name }} has no GPU, and the run's rollout.tensor_parallel is {{ $parallel }}: set the pool's gpu.count to {{ $parallel }}, or the run's rollout.tensor_parallel to 1
{{- end }}
{{- if and (gt $gpus 0) (eq $count 0) }}
pool {{ .name }} has no GPU and the learner has: weights go between GPUs or between CPUs; set learner.gpu.count to 0, or the pool's gpu.count to {{ $parallel }}
{{- else if and (eq $gpus 0) (gt $count 0) }}
pool {{ .name }} has GPUs and the learner has none: weights go between GPUs or between CPUs; set the pool's gpu.count to 0, or learner.gpu.count to the GPUs of a node
{{- end }}
{{- end }}
{{- end -}}

{{- define "slipstream.guards.learner" -}}
{{- $checkpoints := .Values.learner.checkpoints -}}
{{- if and (gt (int .Values.learner.nodes) 1) (not $checkpoints.existingClaim) (not (has "ReadWriteMany" $checkpoints.accessModes)) }}
learner.nodes is {{ .Values.learner.nodes }}, and all of them write one checkpoint: set learner.checkpoints.accessModes to [ReadWriteMany] with a storage class that has it, or existingClaim to such a claim
{{- end }}
{{- end -}}
