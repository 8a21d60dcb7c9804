{{/* The pools: each entry overrides rollout.defaults. */}}

{{/* All pools with their defaults, as JSON {pools: [...]}. */}}
{{- define "slipstream.rollout.pools" -}}
{{- $pools := list -}}
{{- range .Values.rollout.pools -}}
{{- $pool := mergeOverwrite (deepCopy $.Values.rollout.defaults) (deepCopy .) -}}
{{- $_ := set $pool "serviceAccount" $.Values.rollout.serviceAccount -}}
{{- if $pool.spot -}}
{{- $_ := set $pool "nodeSelector" (mergeOverwrite (deepCopy $.Values.rollout.spot.nodeSelector) $pool.nodeSelector) -}}
{{- $_ := set $pool "tolerations" (concat $.Values.rollout.spot.tolerations $pool.tolerations) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- dict "pools" $pools | toJson -}}
{{- end -}}

{{- define "slipstream.rollout.deletionCost" -}}
{{- if kindIs "invalid" .podDeletionCost -}}{{- ternary -100 0 .spot -}}{{- else -}}{{- .podDeletionCost -}}{{- end -}}
{{- end -}}

{{/* The query of a pool's pressure. A pool without workers has no series, so the query falls back to the release's. Takes (list $ POOL NAME). */}}
{{- define "slipstream.rollout.pressure" -}}
{{- with index . 0 -}}
{{- $release := printf `release="%s",namespace="%s"` .Release.Name .Release.Namespace -}}
max(slipstream:pressure{ {{- $release }},pool="{{ index $ 1 }}"}) or max(slipstream:pressure{ {{- $release }},pool=""})
{{- end -}}
{{- end -}}

{{/* Arguments of the templates of a pool's pods, except `root` and `room`, as JSON. Takes (list $ POOL). */}}
{{- define "slipstream.rollout.described" -}}
{{- with index . 0 -}}
{{- $start := include "slipstream.run.value" (list . "rollout.start_timeout_seconds" 1800) | float64 | ceil | int -}}
{{- $pool := (index $ 1).name -}}
{{- if gt (int (index $ 1).nodes) 1 -}}
{{- /* The first pods of a worker wait for pods whose nodes start later. */}}
{{- $start = add $start .Values.rollout.meetSeconds -}}
{{- end -}}
{{- $name := printf "%s-rollout-%s" (include "slipstream.fullname" .) $pool -}}
{{- dict "component" "rollout" "pool" $pool "name" $name "startSeconds" (add $start 60) | toJson -}}
{{- end -}}
{{- end -}}

{{/* The workload that an autoscaler scales; one replica is one worker. Takes (dict "room" POOL "name" NAME). */}}
{{- define "slipstream.rollout.scaleTarget" -}}
{{- if gt (int .room.nodes) 1 -}}
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: {{ .name }}}
{{- else -}}
{apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
{{- end -}}
{{- end -}}
