{{/* The init container that runs `slipstream validate` with the files of the pod before the learner starts. */}}

{{/* Whether the pod mounts the prompts for the check: not if the mount at /models has them. */}}
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

{{/* The init containers in their order: the check after a download, which it reads, and before the making of a model, which takes long. Takes (dict "root" $ "room" ROOM "component" NAME). */}}
{{- define "slipstream.learner.initial" -}}
{{- $model := include "slipstream.model.init" . -}}
{{- $check := include "slipstream.check.init" . -}}
{{- ternary (list $model $check) (list $check $model) (eq .root.Values.model.mode "download") | compact | join "\n" -}}
{{- end -}}

{{/* The values that the check reads. They are in a ConfigMap, so values that may be confidential, such as environment variables, are left out. */}}
{{- define "slipstream.check.values" -}}
{{- $values := .Values -}}
{{- $pools := list -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $pools = append $pools (pick . "name" "nodes" "replicas" "autoscaling" "gpu" "resources") -}}
{{- end -}}
{{- dict
  "run" (pick $values.run "name")
  "data" $values.data
  "model" (pick $values.model "mode" "volume" "download")
  "tls" (pick $values.tls "mode" "trustDomain")
  "image" (pick $values.image "repository")
  "learner" (pick $values.learner "nodes" "gpu" "ranksPerNode" "resources" "checkpoints" "stopSeconds" "extraVolumeMounts")
  "rollout" (dict "pools" $pools)
  "actor" (pick $values.actor "replicas" "drainSeconds")
  "verifier" (pick $values.verifier "gpu" "resources")
  "teacher" (pick $values.teacher "gpu")
  "replay" (pick $values.replay "image" "extraVolumeMounts")
  "redis" (pick $values.redis "mode" "maxMemoryMiB" "external")
  "network" (pick $values.network "policies")
  | toYaml -}}
{{- end -}}
