{{/* Rights to scale the pools of rollouts, and nothing else of the release. */}}

{{/* Names of the objects by which pools are scaled, as JSON with `deployments`, `groups` and `scaledObjects`. */}}
{{- define "slipstream.cluster.pools" -}}
{{- $name := include "slipstream.fullname" . -}}
{{- $deployments := list -}}
{{- $groups := list -}}
{{- $scaled := list -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $pool := printf "%s-rollout-%s" $name .name -}}
{{- if gt (int .nodes) 1 -}}
{{- $groups = append $groups $pool -}}
{{- else -}}
{{- $deployments = append $deployments $pool -}}
{{- end -}}
{{- if eq .autoscaling.kind "keda" -}}
{{- $scaled = append $scaled $pool -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "deployments" $deployments "groups" $groups "scaledObjects" $scaled) -}}
{{- end -}}

{{/* Rules of a Role that lists workloads and autoscalers, and changes those of the pools. */}}
{{- define "slipstream.cluster.scaleRules" -}}
{{- $pools := include "slipstream.cluster.pools" . | fromJson -}}
- {apiGroups: [apps], resources: [deployments, statefulsets], verbs: [list]}
- {apiGroups: [autoscaling], resources: [horizontalpodautoscalers], verbs: [list]}
- {apiGroups: [leaderworkerset.x-k8s.io], resources: [leaderworkersets], verbs: [list]}
- {apiGroups: [keda.sh], resources: [scaledobjects], verbs: [list]}
{{- with $pools.deployments }}
- {apiGroups: [apps], resources: [deployments/scale], resourceNames: {{ toJson . }}, verbs: [patch]}
{{- end }}
{{- with $pools.groups }}
- {apiGroups: [leaderworkerset.x-k8s.io], resources: [leaderworkersets/scale], resourceNames: {{ toJson . }}, verbs: [patch]}
{{- end }}
{{- with $pools.scaledObjects }}
- {apiGroups: [keda.sh], resources: [scaledobjects], resourceNames: {{ toJson . }}, verbs: [patch]}
{{- end }}
{{- end -}}
