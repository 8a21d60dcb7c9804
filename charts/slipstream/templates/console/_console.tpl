{{/* The console's token, and its place beside the learner. */}}

{{/* Source of the console's volume: the token of its visitors. */}}
{{- define "slipstream.console.sources" -}}
- secret:
    name: {{ .Values.console.token.existingSecret }}
    items:
      - {key: {{ .Values.console.token.key }}, path: console/token}
{{- end -}}

{{/* The values of the console as JSON. Beside the learner they have its tolerations, and an affinity to its first pod. */}}
{{- define "slipstream.console.room" -}}
{{- $room := deepCopy .Values.console -}}
{{- if $room.besideLearner -}}
{{- $learner := dict "root" . "component" "learner" -}}
{{- $term := dict
  "labelSelector" (dict "matchLabels" (include "slipstream.selector" $learner | fromYaml))
  "topologyKey" "kubernetes.io/hostname" -}}
{{- $kind := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $terms := append (dig "podAffinity" $kind list $room.affinity) $term -}}
{{- $_ := set $room "affinity" (mergeOverwrite $room.affinity (dict "podAffinity" (dict $kind $terms))) -}}
{{- $_ := set $room "tolerations" (concat .Values.learner.tolerations $room.tolerations | uniq) -}}
{{- end -}}
{{- toJson $room -}}
{{- end -}}
