{{/* Keys of the run's YAML that the chart reads. */}}

{{/* One key of the run as JSON {found, value}. Takes (list $ "dotted.key"). */}}
{{- define "slipstream.run.look" -}}
{{- $here := index . 0 | include "slipstream.run.tree" | fromJson -}}
{{- $found := true -}}
{{- range splitList "." (index . 1) -}}
{{- if and $found (kindIs "map" $here) (hasKey (default (dict) $here) .) -}}
{{- $here = index $here . -}}
{{- else -}}
{{- $found = false -}}
{{- end -}}
{{- end -}}
{{- dict "found" $found "value" (ternary $here nil $found) | toJson -}}
{{- end -}}

{{/* One key of the run, or a default if it is absent or null. Takes (list $ "dotted.key" DEFAULT). */}}
{{- define "slipstream.run.value" -}}
{{- $look := include "slipstream.run.look" (list (index . 0) (index . 1)) | fromJson -}}
{{- if kindIs "invalid" $look.value -}}{{- index . 2 -}}{{- else -}}{{- $look.value -}}{{- end -}}
{{- end -}}

{{/* The environments of the run as JSON {environments: [{key, value}]}: that of the data, and those of the sources of a mixture. */}}
{{- define "slipstream.run.environments" -}}
{{- $sections := list (dict "key" "data" "value" (include "slipstream.run.look" (list . "data") | fromJson).value) -}}
{{- $of := (include "slipstream.run.look" (list . "data.of") | fromJson).value -}}
{{- range $number, $source := ternary $of (list) (kindIs "slice" $of) -}}
{{- $sections = append $sections (dict "key" (printf "data.of.%d" $number) "value" $source) -}}
{{- end -}}
{{- $environments := list -}}
{{- range $sections -}}
{{- if and (kindIs "map" .value) (kindIs "map" .value.environment) -}}
{{- $environments = append $environments (dict "key" (printf "%s.environment" .key) "value" .value.environment) -}}
{{- end -}}
{{- end -}}
{{- dict "environments" $environments | toJson -}}
{{- end -}}

{{/* The tools of all environments of the run as JSON {tools: [...]}. */}}
{{- define "slipstream.run.tools" -}}
{{- $tools := list -}}
{{- range (include "slipstream.run.environments" . | fromJson).environments -}}
{{- range ternary .value.tools (list) (kindIs "slice" .value.tools) -}}
{{- if kindIs "map" . -}}{{- $tools = append $tools . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "tools" $tools | toJson -}}
{{- end -}}

{{- define "slipstream.run.tree" -}}
{{- .Values.run.config | fromYaml | toJson -}}
{{- end -}}

{{/* The number of the learner's ranks in a pod, and in all pods. */}}
{{- define "slipstream.learner.ranksPerNode" -}}
{{- with .Values.learner }}{{ ternary .gpu.count .ranksPerNode (gt (int .gpu.count) 0) }}{{ end -}}
{{- end -}}

{{- define "slipstream.learner.ranks" -}}
{{- mul .Values.learner.nodes (include "slipstream.learner.ranksPerNode" . | int) -}}
{{- end -}}

{{/* Seconds that a stopped actor has to finish its groups. */}}
{{- define "slipstream.actor.drainSeconds" -}}
{{- include "slipstream.run.value" (list . "actor.drain_seconds" .Values.actor.drainSeconds) -}}
{{- end -}}
