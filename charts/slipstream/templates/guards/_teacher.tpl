{{/* Guards on the teacher of a run that distills: where its model is, what computes it, what scales it. */}}

{{- define "slipstream.guards.teacher" -}}
{{- if include "slipstream.teacher.enabled" . -}}
{{- $teacher := .Values.teacher -}}
{{- $path := toString (default "" (include "slipstream.run.look" (list . "teacher.path") | fromJson).value) -}}
{{- $device := toString (default "auto" (include "slipstream.run.look" (list . "teacher.device") | fromJson).value) -}}
{{- $mounts := concat (include "slipstream.teacher.mounts" . | fromYamlArray) $teacher.extraVolumeMounts -}}
{{- $there := false -}}
{{- range $mounts -}}{{- if or (eq $path .mountPath) (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path) -}}{{- $there = true -}}{{- end -}}{{- end -}}
{{- if not $path }}
the run has algorithm.distillation and no teacher.path: set the run's teacher.path to one below /models, and teacher.models.existingClaim to a claim with the model
{{- else if not $there }}
the run's teacher.path is {{ $path }}, where the teacher has no volume: set teacher.models.existingClaim to a claim with the model, and the path to one below /models
{{- end }}
{{- if and $teacher.models.existingClaim $teacher.models.hostPath }}
teacher.models has an existingClaim and a hostPath: leave one of them empty
{{- end }}
{{- if and (eq $device "cuda") (eq (int $teacher.gpu.count) 0) }}
the run's teacher.device is cuda, and teacher.gpu.count is 0: set it to 1, or the device to auto
{{- end }}
{{- if and (eq $device "cpu") (gt (int $teacher.gpu.count) 0) }}
the run's teacher.device is cpu, and teacher.gpu.count is {{ $teacher.gpu.count }}: set it to 0, or the device to auto
{{- end }}
{{- if gt (int $teacher.gpu.count) 1 }}
teacher.gpu.count is {{ $teacher.gpu.count }}, and a teacher computes on one GPU: set it to 1, and raise teacher.replicas
{{- end }}
{{- with $teacher.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
teacher.autoscaling.minReplicas is {{ .minReplicas }}, above maxReplicas {{ .maxReplicas }}: lower the one or raise the other
{{- end }}
{{- if and .enabled (lt (int .minReplicas) (int .maxReplicas)) -}}
{{- $requests := include "slipstream.run.value" (list $ "teacher.requests" 8) | int -}}
{{- $step := include "slipstream.run.value" (list $ "learner.groups_per_step" 64) | int -}}
{{- $size := include "slipstream.run.value" (list $ "rollout.group_size" 8) | int -}}
{{- if kindIs "map" (include "slipstream.run.look" (list $ "algorithm.shaping.adaptive_group") | fromJson).value -}}
{{- $size = max $size (include "slipstream.run.value" (list $ "algorithm.shaping.adaptive_group.largest" 32) | int) -}}
{{- end -}}
{{- $held := mul (sub .maxReplicas 1) .targetCompletions -}}
{{- $needed := add1 (div $held $size) -}}
{{- $out := mul (min $requests $step) $size -}}
{{- if le $out $held }}
teacher.autoscaling.maxReplicas is {{ .maxReplicas }}, and is never reached: the learner has at most {{ min $requests $step }} × {{ $size }} = {{ $out }} completions at all teachers together (the run's teacher.requests, learner.groups_per_step at most, × rollout.group_size), and {{ sub .maxReplicas 1 }} teachers hold {{ $held }} (targetCompletions each): raise the run's teacher.requests{{ if lt $step $needed }} and learner.groups_per_step{{ end }} to {{ $needed }}, or lower targetCompletions or maxReplicas
{{- end }}
{{- end }}
{{- if and .enabled (not $.Values.autoscaling.prometheus.address) }}
teacher.autoscaling is enabled, and KEDA does not know Prometheus: set autoscaling.prometheus.address
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}
