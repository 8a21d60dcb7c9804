{{/* The volumes of all components. All take (dict "root" $ "room" ROOM "component" NAME). */}}

{{/* The names of the chart's own volumes in the pods of a component, separated by blanks. */}}
{{- define "slipstream.volumes.own" -}}
{{- $names := list "config" "tmp" -}}
{{- $further := "" -}}
{{- if eq .component "redis" -}}
{{- $names = append $names "users" -}}
{{- $names = append $names "data" -}}
{{- else -}}
{{- $names = append $names "home" -}}
{{- $further = include "slipstream.data.volumeOf" . -}}
{{- end -}}
{{- if has .component (list "learner" "rollout") -}}
{{- $names = append $names "shared-memory" -}}
{{- $further = list $further (include "slipstream.model.volume" .) | join "\n" -}}
{{- else if eq .component "actor" -}}
{{- $further = include "slipstream.model.volume" . -}}
{{- else if has .component (list "verifier" "teacher") -}}
{{- $further = include (printf "slipstream.%s.volumes" .component) .root -}}
{{- end -}}
{{- if has .component (list "learner" "console") -}}{{- $names = append $names "checkpoints" -}}{{- end -}}
{{- range fromYamlArray $further -}}{{- $names = append $names .name -}}{{- end -}}
{{- join " " $names -}}
{{- end -}}

{{- define "slipstream.mounts.base" -}}
- {name: config, mountPath: /etc/slipstream, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/slipstream}
{{- end -}}

{{- define "slipstream.volumes.base" -}}
{{ include "slipstream.volumes.config" . }}
- name: tmp
  emptyDir: {{ with .room.scratchSize }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}
- name: home
  emptyDir: {{ with .room.cacheSize }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}
{{- end -}}

{{/* Configuration, certificate and password in one projected volume, because nothing can be mounted below a mounted ConfigMap. */}}
{{- define "slipstream.volumes.config" -}}
{{- $role := ternary "probe" .component (eq .component "test") -}}
- name: config
  projected:
    defaultMode: 0440
    sources:
      - configMap:
          name: {{ include "slipstream.fullname" .root }}-config
      {{- if ne .root.Values.tls.mode "none" }}
      - secret:
          name: {{ include "slipstream.tls.secret" (dict "root" .root "role" $role) }}
          items:
            {{- range list "tls.crt" "tls.key" "ca.crt" }}
            - {key: {{ . }}, path: tls/{{ . }}}
            {{- end }}
      {{- end }}
      {{- if eq .component "replay" }}
      {{- with include "slipstream.redis.sources" .root }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- if eq .component "console" }}
      {{- include "slipstream.console.sources" .root | nindent 6 }}
      {{- end }}
      {{- with include "slipstream.model.authoritySource" . }}
      {{- . | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "slipstream.volumes.shared" -}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ .room.sharedMemory }}}
{{- end -}}

{{- define "slipstream.mounts.shared" -}}
- {name: shared-memory, mountPath: /dev/shm}
{{- end -}}
