{{/* The volumes of all rooms. All take (dict "root" $ "room" ROOM "component" NAME). */}}

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

{{/* Configuration, certificate and password in one volume: nothing can be mounted below a mounted ConfigMap. */}}
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
      {{- include "slipstream.redis.sources" .root | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "slipstream.volumes.shared" -}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ .room.sharedMemory }}}
{{- end -}}

{{- define "slipstream.mounts.shared" -}}
- {name: shared-memory, mountPath: /dev/shm}
{{- end -}}
