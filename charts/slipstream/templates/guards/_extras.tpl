{{/* Guards on volumes and variables that the user adds: their names and paths must not clash with the chart's. */}}

{{- define "slipstream.guards.extras" -}}
{{- $common := list "/etc/slipstream" "/tmp" "/home/slipstream" -}}
{{- $model := concat $common (list "/models") -}}
{{- if .Values.data.existingClaim -}}
{{- if ne .Values.model.mode "volume" -}}{{- $model = append $model .Values.data.mountPath -}}{{- end -}}
{{- end -}}
{{- $checked := ternary (list .Values.data.mountPath) list (eq (include "slipstream.check.data" .) "true") -}}
{{- $verifier := $common -}}
{{- range include "slipstream.verifier.mounts" . | fromYamlArray -}}{{- $verifier = append $verifier .mountPath -}}{{- end -}}
{{- $teacher := $common -}}
{{- range include "slipstream.teacher.mounts" . | fromYamlArray -}}{{- $teacher = append $teacher .mountPath -}}{{- end -}}
{{- $places := dict
  "learner" (concat $model $checked (list "/dev/shm" "/var/lib/slipstream"))
  "rollout" (append $model "/dev/shm")
  "actor" (append $common "/models")
  "replay" (ternary (append $common .Values.data.mountPath) $common (not (empty .Values.data.existingClaim)))
  "verifier" $verifier
  "teacher" $teacher
  "console" (append $common "/var/lib/slipstream")
  "tests" $common
  "redis" (list "/etc/redis" "/run/redis" "/tmp" "/data") -}}
{{- range $where := list "learner" "actor" "verifier" "teacher" "replay" "console" "redis" "tests" -}}
{{- $component := ternary "test" $where (eq $where "tests") -}}
{{- include "slipstream.guards.extrasOf" (dict "root" $ "where" $where "component" $component "room" (index $.Values $where) "places" (index $places $where)) -}}
{{- end -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- include "slipstream.guards.extrasOf" (dict "root" $ "where" (printf "rollout.pools[%s]" .name) "component" "rollout" "room" . "places" $places.rollout) -}}
{{- end -}}
{{- if and .Values.data.existingClaim (or (has .Values.data.mountPath $common) (hasPrefix "/etc/slipstream/" .Values.data.mountPath) (and (ne .Values.model.mode "volume") (eq .Values.data.mountPath "/models"))) }}
data.mountPath is {{ .Values.data.mountPath }}, where the pods have something else: set it to another directory, such as /data
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "where" WHAT "component" NAME "room" ROOM "places" PATHS). */}}
{{- define "slipstream.guards.extrasOf" -}}
{{- $where := .where -}}
{{- $set := list "HOME" "USER" "POD_NAME" "POD_IP" "NODE_RANK" "HF_HUB_OFFLINE" "NVIDIA_VISIBLE_DEVICES" -}}
{{- if and (eq .component "rollout") (gt (int (default 1 .room.nodes)) 1) -}}{{- $set = append $set "VLLM_HOST_IP" -}}{{- end -}}
{{- $variables := list -}}
{{- range .room.extraEnv -}}
{{- if or (has .name $set) (hasPrefix "SLIPSTREAM_" .name) }}
{{ $where }}.extraEnv sets {{ .name }}, which the chart sets: leave it out
{{- else if has .name $variables }}
{{ $where }}.extraEnv sets {{ .name }} two times: leave one of them out
{{- end }}
{{- $variables = append $variables .name -}}
{{- if and (eq .name "PYTHONPATH") (eq $where "verifier") $.room.code }}
verifier.extraEnv sets PYTHONPATH, and verifier.code is found by it: leave it out, or put all code into one image
{{- end }}
{{- end -}}
{{- $own := include "slipstream.volumes.own" . | splitList " " -}}
{{- $names := list -}}
{{- range .room.extraVolumes -}}
{{- if has .name $own }}
{{ $where }}.extraVolumes has a volume {{ .name }}, which is a name of the chart's own: give it another
{{- else if has .name $names }}
{{ $where }}.extraVolumes has two volumes {{ .name }}: give each a name of its own
{{- end }}
{{- $names = append $names .name -}}
{{- end -}}
{{- $places := .places -}}
{{- range .room.extraVolumeMounts -}}
{{- $path := trimSuffix "/" .mountPath -}}
{{- if not (has .name (concat $own $names)) }}
{{ $where }}.extraVolumeMounts mounts {{ .name }}, and no volume is called so: add it to {{ $where }}.extraVolumes
{{- end }}
{{- if or (has $path $places) (hasPrefix "/etc/slipstream/" $path) (hasPrefix "/etc/redis/" $path) }}
{{ $where }}.extraVolumeMounts mounts {{ .name }} at {{ .mountPath }}, which is taken: set another mountPath
{{- end }}
{{- $places = append $places $path -}}
{{- end -}}
{{- end -}}
