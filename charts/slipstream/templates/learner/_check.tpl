{{/* `slipstream validate` in the learner's pod, before the learner starts: the same check as on a workstation, with the real files. */}}

{{/* Whether the pod mounts the prompts for it: not where /models has them already. */}}
{{- define "slipstream.check.data" -}}
{{- if and .Values.learner.check.enabled .Values.data.existingClaim (ne .Values.data.mountPath "/models") -}}true{{- end -}}
{{- end -}}

{{/* Takes (dict "root" $ "room" ROOM "component" NAME). */}}
{{- define "slipstream.check.init" -}}
{{- if .room.check.enabled -}}
- name: check
  {{- include "slipstream.container.image" . | nindent 2 }}
  command: [tini, -g, --, {{ include "slipstream.container.again" . }}python, -m, slipstream.cli, validate, /etc/slipstream/run.yaml]
  args:
    - --values=/etc/slipstream/values.yaml
    - --models=/models
    - --installed
    {{- if include "slipstream.check.data" .root }}
    - --data={{ .root.Values.data.mountPath }}
    {{- end }}
  # `kubectl describe pod` shows the end of the log of a check that failed.
  terminationMessagePolicy: FallbackToLogsOnError
  env:
    {{- include "slipstream.env.home" . | nindent 4 }}
    {{- include "slipstream.env.withoutGpu" . | nindent 4 }}
    - {name: HF_HUB_OFFLINE, value: "1"}
  resources:
    {{- toYaml .room.check.resources | nindent 4 }}
  {{- include "slipstream.container.security" . | nindent 2 }}
  volumeMounts:
    {{- include "slipstream.mounts.base" . | nindent 4 }}
    {{- include "slipstream.model.mount" . | nindent 4 }}
    {{- if include "slipstream.check.data" .root }}
    {{- include "slipstream.data.mount" .root | nindent 4 }}
    {{- end }}
    {{- with .room.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* The check needs a model that is downloaded, and saves the time of making one for a run that cannot work. Takes the above. */}}
{{- define "slipstream.learner.initial" -}}
{{- $model := include "slipstream.model.init" . -}}
{{- $check := include "slipstream.check.init" . -}}
{{- ternary (list $model $check) (list $check $model) (eq .root.Values.model.mode "download") | compact | join "\n" -}}
{{- end -}}

{{/* The values that the check reads. The others may have what is meant for few, such as an environment variable. */}}
{{- define "slipstream.check.values" -}}
{{- $values := .Values -}}
{{- $pools := list -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $pools = append $pools (pick . "name" "nodes" "gpu" "resources") -}}
{{- end -}}
{{- dict
  "run" (pick $values.run "name")
  "data" $values.data
  "model" (pick $values.model "mode" "volume" "download")
  "tls" (pick $values.tls "mode" "trustDomain")
  "image" (pick $values.image "repository")
  "learner" (pick $values.learner "nodes" "gpu" "ranksPerNode" "resources" "checkpoints" "stopSeconds" "extraVolumeMounts")
  "rollout" (dict "drainSeconds" $values.rollout.drainSeconds "pools" $pools)
  "verifier" (pick $values.verifier "gpu" "resources")
  "teacher" (pick $values.teacher "gpu")
  "replay" (pick $values.replay "image" "extraVolumeMounts")
  "redis" (pick $values.redis "mode" "maxMemoryMiB" "external")
  "network" (pick $values.network "policies")
  | toYaml -}}
{{- end -}}
