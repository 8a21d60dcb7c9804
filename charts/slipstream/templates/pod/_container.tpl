{{/* Parts of the containers of all components. All take (dict "root" $ "room" ROOM "component" NAME). */}}

{{- define "slipstream.container.image" -}}
{{- $image := .room.image -}}
{{- $own := dict "learner" "learner" "teacher" "learner" "rollout" "rollout" "console" "cpu" | dig .component "services" | printf "slipstream/%s" -}}
{{- $repository := default (default $own .root.Values.image.repository) $image.repository -}}
{{- $registry := default .root.Values.image.registry $image.registry -}}
{{- $tag := default (default .root.Chart.AppVersion .root.Values.image.tag) $image.tag -}}
image: {{ with $registry }}{{ . }}/{{ end }}{{ $repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
{{- end -}}

{{- define "slipstream.container.security" -}}
securityContext:
  {{- mergeOverwrite (deepCopy .root.Values.securityContext) .room.securityContext | toYaml | nindent 2 }}
{{- end -}}

{{/* Containers that the user adds, as a list. A container without a security context gets the component's. Also takes "extra". */}}
{{- define "slipstream.container.extra" -}}
{{- $own := mergeOverwrite (deepCopy .root.Values.securityContext) .room.securityContext -}}
{{- range .extra }}
{{ list (merge (deepCopy .) (hasKey . "securityContext" | ternary (dict) (dict "securityContext" $own))) | toYaml }}
{{- end }}
{{- end -}}

{{- define "slipstream.container.sidecars" -}}
{{- include "slipstream.container.extra" (merge (dict "extra" .room.sidecars) .) | trim -}}
{{- end -}}

{{- define "slipstream.container.envFrom" -}}
{{- with .room.envFrom -}}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/*
The beginning of the command of an init container that may fail, for a flow sequence. LeaderWorkerSet replaces all pods of a
group when a container of one restarts, also an init container, immediately and without a limit: in its pods the command
is run again inside the container. `tini -g` signals the shell and the command. Takes the above, and "node" of a pool's pod.
*/}}
{{- define "slipstream.container.again" -}}
{{- if or .node (and (eq .component "learner") (eq .root.Values.learner.workload "LeaderWorkerSet")) -}}
{{- $say := "echo 'This failed, and is run again in 60 seconds: the reason is above.' >&2" -}}
sh, -c, {{ printf `until "$@"; do %s; sleep 60; done` $say | quote }}, sh,{{ " " }}
{{- end -}}
{{- end -}}

{{/* Requests and limits. Both have the GPUs, unless the GPUs come from claims. */}}
{{- define "slipstream.container.resources" -}}
resources:
  {{- $gpus := dict -}}
  {{- with .room.gpu -}}
  {{- if and (gt (int .count) 0) .resource -}}
  {{- $gpus = dict .resource (.count | toString) -}}
  {{- end -}}
  {{- end -}}
  {{- mergeOverwrite (deepCopy .room.resources) (dict "requests" $gpus "limits" $gpus) | toYaml | nindent 2 }}
{{- end -}}

{{/* The three probes of a Slipstream container. Also takes "startSeconds", and optionally "probed", the port if it is not that of the metrics. */}}
{{- define "slipstream.container.probes" -}}
{{- $probes := .root.Values.probes -}}
startupProbe:
  httpGet: {path: /startupz, port: {{ default "metrics" .probed }}}
  periodSeconds: {{ $probes.startup.periodSeconds }}
  timeoutSeconds: {{ $probes.startup.timeoutSeconds }}
  failureThreshold: {{ include "slipstream.container.startTries" . }}
readinessProbe:
  httpGet: {path: /readyz, port: {{ default "metrics" .probed }}}
  periodSeconds: {{ $probes.readiness.periodSeconds }}
  timeoutSeconds: {{ $probes.readiness.timeoutSeconds }}
  failureThreshold: {{ $probes.readiness.failureThreshold }}
livenessProbe:
  httpGet: {path: /livez, port: {{ default "metrics" .probed }}}
  periodSeconds: {{ $probes.liveness.periodSeconds }}
  timeoutSeconds: {{ $probes.liveness.timeoutSeconds }}
  failureThreshold: {{ $probes.liveness.failureThreshold }}
{{- end -}}

{{- define "slipstream.container.startTries" -}}
{{- divf .startSeconds .root.Values.probes.startup.periodSeconds | ceil | int -}}
{{- end -}}

{{- define "slipstream.container.preStop" -}}
{{- if gt (int .room.preStopSeconds) 0 -}}
lifecycle:
  preStop:
    exec: {command: ["sleep", {{ .room.preStopSeconds | quote }}]}
{{- end -}}
{{- end -}}

{{/* The two configuration files of every pod; the second overrides the first. */}}
{{- define "slipstream.container.config" -}}
- --config=/etc/slipstream/run.yaml
- --config=/etc/slipstream/cluster.yaml
{{- end -}}

{{- define "slipstream.env.home" -}}
- {name: HOME, value: /home/slipstream}
- {name: USER, value: slipstream}
{{- end -}}

{{/* Images based on CUDA request all GPUs of the node, and some container runtimes then give them GPUs of other pods. */}}
{{- define "slipstream.env.withoutGpu" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: void}
{{- end -}}

{{- define "slipstream.env.pod" -}}
{{ include "slipstream.env.home" . }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- with .room.gpu }}
{{- if eq (int .count) 0 }}
{{ include "slipstream.env.withoutGpu" $ }}
{{- end }}
{{- end }}
{{- end -}}
