{{/* The connections between components: the ingress and egress rules of each. All take the root. */}}

{{- define "slipstream.network.learner" -}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
  # The store of torchrun has no authentication, so no rollout may connect to it.
  {{- include "slipstream.network.weights" (list . "from" "rollout" "learner" "weights") | nindent 2 }}
  {{- include "slipstream.network.any" (list . "from" "learner") | nindent 2 }}
  {{- if .Values.tests.enabled }}
  {{- include "slipstream.network.edge" (list . "from" "learner" "test") | nindent 2 }}
  {{- end }}
  {{- if .Values.console.enabled }}
  {{- include "slipstream.network.edge" (list . "from" "learner" "console") | nindent 2 }}
  {{- end }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- include "slipstream.network.weights" (list . "to" "rollout") | nindent 2 }}
  {{- include "slipstream.network.any" (list . "to" "learner") | nindent 2 }}
  {{- include "slipstream.network.edge" (list . "to" "replay" "replay") | nindent 2 }}
  {{- if include "slipstream.teacher.enabled" . }}
  {{- include "slipstream.network.edge" (list . "to" "teacher" "teacher") | nindent 2 }}
  {{- end }}
  {{- include "slipstream.network.hub" . | nindent 2 }}
{{- end -}}

{{- define "slipstream.network.rollout" -}}
{{- /* A weight group connects all its members, also the rollouts with each other. */}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
  {{- include "slipstream.network.weights" (list . "from" "learner") | nindent 2 }}
  {{- include "slipstream.network.rollouts" (list . "from") | nindent 2 }}
  {{- include "slipstream.network.edge" (list . "from" "rollout" "actor") | nindent 2 }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- include "slipstream.network.weights" (list . "to" "learner" "learner" "weights") | nindent 2 }}
  {{- include "slipstream.network.rollouts" (list . "to") | nindent 2 }}
  {{- include "slipstream.network.edge" (list . "to" "replay" "replay") | nindent 2 }}
  {{- include "slipstream.network.hub" . | nindent 2 }}
{{- end -}}

{{/* Nobody calls an actor. */}}
{{- define "slipstream.network.actor" -}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- range list "replay" "rollout" "verifier" }}
  {{- include "slipstream.network.edge" (list $ "to" . .) | nindent 2 }}
  {{- end }}
  {{- include "slipstream.network.hub" . | nindent 2 }}
{{- end -}}

{{/* The verifier runs untrusted programs, so it may only connect to the endpoints of judges. */}}
{{- define "slipstream.network.verifier" -}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
  {{- include "slipstream.network.served" (list . "verifier" "actor") | nindent 2 }}
  {{- if .Values.verifier.http.enabled }}
  - ports: [{protocol: TCP, port: {{ .Values.verifier.http.port }}}]
    from:
      {{- toYaml .Values.verifier.http.peers | nindent 6 }}
  {{- end }}
{{- $ports := include "slipstream.verifier.judgePorts" . }}
{{- if and $ports .Values.verifier.judge.peers }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  - ports:
      {{- range splitList " " $ports }}
      - {protocol: TCP, port: {{ . }}}
      {{- end }}
    to:
      {{- toYaml .Values.verifier.judge.peers | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The teacher opens no connections. */}}
{{- define "slipstream.network.teacher" -}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
  {{- include "slipstream.network.edge" (list . "from" "teacher" "learner") | nindent 2 }}
  {{- if .Values.tests.enabled }}
  {{- include "slipstream.network.edge" (list . "from" "teacher" "test") | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "slipstream.network.replay" -}}
ingress:
  {{- include "slipstream.network.metrics" . | nindent 2 }}
  {{- include "slipstream.network.served" (list . "replay" "actor" "rollout" "learner") | nindent 2 }}
  {{- if .Values.console.enabled }}
  {{- include "slipstream.network.edge" (list . "from" "replay" "console") | nindent 2 }}
  {{- end }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- if eq .Values.redis.mode "builtIn" }}
  {{- include "slipstream.network.edge" (list . "to" "redis" "redis") | nindent 2 }}
  {{- else }}
  - ports: [{protocol: TCP, port: {{ .Values.redis.external.port }}}]
    {{- with .Values.redis.external.networkPeers }}
    to:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The console asks replay for the state of the run, the learner for a checkpoint, and the API server to scale. */}}
{{- define "slipstream.network.console" -}}
{{- with .Values.console.peers }}
ingress:
  - ports: [{protocol: TCP, port: {{ include "slipstream.ports.console" $ }}}]
    from:
      {{- toYaml . | nindent 6 }}
{{- end }}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- range list "replay" "learner" }}
  {{- include "slipstream.network.edge" (list $ "to" . .) | nindent 2 }}
  {{- end }}
  {{- with .Values.console }}
  {{- if .allowScaling }}
  - ports:
      {{- range .apiServer.ports }}
      - {protocol: TCP, port: {{ . }}}
      {{- end }}
    {{- with .apiServer.peers }}
    to:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "slipstream.network.redis" -}}
ingress:
  {{- include "slipstream.network.edge" (list . "from" "redis" "replay") | nindent 2 }}
{{- end -}}

{{- define "slipstream.network.test" -}}
egress:
  {{- include "slipstream.network.dns" . | nindent 2 }}
  {{- range list "replay" "verifier" "learner" }}
  {{- include "slipstream.network.edge" (list $ "to" . .) | nindent 2 }}
  {{- end }}
  {{- if include "slipstream.teacher.enabled" . }}
  {{- include "slipstream.network.edge" (list . "to" "teacher" "teacher") | nindent 2 }}
  {{- end }}
{{- end -}}
