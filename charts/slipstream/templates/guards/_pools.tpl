{{/* Guards on pools and autoscalers. */}}

{{- define "slipstream.guards.pools" -}}
{{- include "slipstream.guards.moved" . }}
{{- $names := list -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- if has .name $names }}
rollout.pools has two pools named {{ .name }}: give each a name of its own
{{- end }}
{{- $names = append $names .name -}}
{{- if and .spot (not (or $.Values.rollout.spot.nodeSelector $.Values.rollout.spot.tolerations)) }}
pool {{ .name }} is for spot nodes, and nothing says which those are: set rollout.spot.nodeSelector and rollout.spot.tolerations
{{- end }}
{{- end }}
{{- end -}}

{{/* Values of the time when workers held groups, which actors hold now. */}}
{{- define "slipstream.guards.moved" -}}
{{- $rooms := dict "rollout" .Values.rollout "rollout.defaults" .Values.rollout.defaults -}}
{{- range .Values.rollout.pools -}}{{- $_ := set $rooms (printf "rollout.pools[%s]" .name) . -}}{{- end -}}
{{- range $where, $room := $rooms -}}
{{- range $key := list "drainSeconds" "marginSeconds" -}}
{{- if not (kindIs "invalid" (get $room $key | default nil)) }}
{{ $where }}.{{ $key }} has moved to actor.{{ $key }}, because actors hold the groups: set it there, and leave it out here
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slipstream.guards.autoscaling" -}}
{{- $values := .Values -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $scaling := .autoscaling -}}
{{- if ne $scaling.kind "none" -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
pool {{ .name }} has autoscaling.minReplicas {{ $scaling.minReplicas }} above maxReplicas {{ $scaling.maxReplicas }}: lower the one or raise the other
{{- end }}
{{- if eq $values.monitoring.rules.from "none" }}
pool {{ .name }} scales on the recording rule slipstream:pressure, and monitoring.rules.from is none: set it to chart, or to elsewhere where the rules are installed already
{{- else if and (eq $values.monitoring.rules.from "chart") (not $values.monitoring.podMonitors.enabled) }}
pool {{ .name }} scales on the recording rule slipstream:pressure, and nothing scrapes the pods: set monitoring.podMonitors.enabled to true, or monitoring.rules.from to elsewhere if you scrape them yourself
{{- end }}
{{- end -}}
{{- if and (eq $scaling.kind "hpa") (eq (int $scaling.minReplicas) 0) }}
pool {{ .name }} has autoscaling.minReplicas 0 with kind hpa, which cannot leave zero: set it to 1 or more, or kind to keda
{{- end }}
{{- if eq $scaling.kind "keda" -}}
{{- if not $values.autoscaling.prometheus.address }}
pool {{ .name }} has autoscaling.kind keda, and KEDA does not know Prometheus: set autoscaling.prometheus.address
{{- end }}
{{- $held := $values.autoscaling.keda.fallback.replicas -}}
{{- if and (not (kindIs "invalid" $held)) (gt (int $held) (int $scaling.maxReplicas)) }}
pool {{ .name }} has autoscaling.maxReplicas {{ $scaling.maxReplicas }}, and the fallback would hold {{ $held }}: lower autoscaling.keda.fallback.replicas, or set it to null
{{- end }}
{{- end }}
{{- end }}
{{- range $component, $queue := dict "actor" "groups" "verifier" "answers" -}}
{{- with (index $values $component).autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{ $component }}.autoscaling.minReplicas is {{ .minReplicas }}, above maxReplicas {{ .maxReplicas }}: lower the one or raise the other
{{- end }}
{{- if and .enabled (eq .by $queue) (not $values.autoscaling.prometheus.address) }}
{{ $component }}.autoscaling.by is {{ $queue }}, and KEDA does not know Prometheus: set autoscaling.prometheus.address
{{- end }}
{{- end }}
{{- end }}
{{- with $values.actor.autoscaling -}}
{{- $most := (include "slipstream.run.look" (list $ "actor.max_groups") | fromJson).value | default 256 | int -}}
{{- /* An autoscaler ignores a deviation of a tenth. */}}
{{- if and .enabled (eq .by "groups") (ge (mul 11 (int .targetGroups)) (mul 10 $most)) }}
actor.autoscaling.targetGroups is {{ .targetGroups }}, and an actor samples at most {{ $most }} groups (the run's actor.max_groups), which is not over a tenth above the target, so no pod would ever be added: set targetGroups to at most {{ div (mul 3 $most) 4 }}, or raise actor.max_groups
{{- end }}
{{- end }}
{{- end -}}
