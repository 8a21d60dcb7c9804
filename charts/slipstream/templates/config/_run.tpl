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

{{/* The tools of all environments of the run as JSON {tools: [...]}: that of the data, and those of the sources of a mixture. */}}
{{- define "slipstream.run.tools" -}}
{{- $sections := list -}}
{{- range list "data" "data.of" -}}
{{- $look := (include "slipstream.run.look" (list $ .) | fromJson).value -}}
{{- $sections = concat $sections (ternary $look (list $look) (kindIs "slice" $look)) -}}
{{- end -}}
{{- $tools := list -}}
{{- range $sections -}}
{{- if and (kindIs "map" .) (kindIs "map" .environment) (kindIs "slice" .environment.tools) -}}
{{- range .environment.tools -}}{{- if kindIs "map" . -}}{{- $tools = append $tools . -}}{{- end -}}{{- end -}}
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
