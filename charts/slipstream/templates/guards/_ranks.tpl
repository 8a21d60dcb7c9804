{{/* Guards on the GPUs and nodes of the learner and of the pools. */}}

{{- define "slipstream.guards.ranks" -}}
{{- $gpus := int .Values.learner.gpu.count -}}
{{- if and (gt $gpus 0) (gt (int .Values.learner.ranksPerNode) 1) }}
learner.ranksPerNode is {{ .Values.learner.ranksPerNode }}, and a rank is a GPU: leave it at 1, and set learner.gpu.count
{{- end }}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $count := int .gpu.count -}}
{{- if gt (int .nodes) 1 -}}
{{- include "slipstream.guards.spanning" (list $ .) }}
{{- end }}
{{- if and (gt $gpus 0) (eq $count 0) }}
pool {{ .name }} has no GPU and the learner has: weights go between GPUs or between CPUs; set learner.gpu.count to 0, or the pool's gpu.count to the run's rollout.tensor_parallel
{{- else if and (eq $gpus 0) (gt $count 0) }}
pool {{ .name }} has GPUs and the learner has none: weights go between GPUs or between CPUs; set the pool's gpu.count to 0, or learner.gpu.count to the GPUs of a node
{{- end }}
{{- end }}
{{- end -}}

{{/* A pool whose workers are several pods. Takes (list $ POOL). */}}
{{- define "slipstream.guards.spanning" -}}
{{- $pool := index . 1 -}}
{{- if eq (int $pool.gpu.count) 0 }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes and no GPU: set the pool's nodes to 1, or its gpu.count to the GPUs of a node
{{- end }}
{{- $name := printf "%s-rollout-%s" (include "slipstream.fullname" (index . 0)) $pool.name -}}
{{- if gt (len $name) 48 }}
pool {{ $pool.name }} has {{ $pool.nodes }} nodes, and the name of its LeaderWorkerSet, {{ $name }}, is longer than 48: shorten the pool's name or set fullnameOverride
{{- end }}
{{- end -}}

{{- define "slipstream.guards.learner" -}}
{{- $checkpoints := .Values.learner.checkpoints -}}
{{- if and (gt (int .Values.learner.nodes) 1) (not $checkpoints.existingClaim) (not (has "ReadWriteMany" $checkpoints.accessModes)) }}
learner.nodes is {{ .Values.learner.nodes }}, and all of them write one checkpoint: set learner.checkpoints.accessModes to [ReadWriteMany] with a storage class that has it, or existingClaim to such a claim
{{- end }}
{{- end -}}
