{{/* Requirements of the run's rewards on the verifier. */}}

{{/* The run's rewards of some kinds as JSON {rewards: [...]}. The kind defaults to the name. Takes (list $ "kind" ...). */}}
{{- define "slipstream.verifier.rewards" -}}
{{- $kinds := rest . -}}
{{- $found := list -}}
{{- $all := (include "slipstream.run.look" (list (index . 0) "rewards") | fromJson).value -}}
{{- range ternary $all list (kindIs "slice" $all) -}}
{{- if and (kindIs "map" .) (has (toString (default .name .kind)) $kinds) -}}
{{- $found = append $found . -}}
{{- end -}}
{{- end -}}
{{- dict "rewards" $found | toJson -}}
{{- end -}}

{{- define "slipstream.verifier.models" -}}
{{- include "slipstream.verifier.rewards" (list . "reward_model" "process_reward") -}}
{{- end -}}

{{/* Longest start in seconds. It is a sum over the models, which are loaded one after the other. */}}
{{- define "slipstream.verifier.startSeconds" -}}
{{- $seconds := float64 .Values.verifier.startSeconds -}}
{{- range (include "slipstream.verifier.models" . | fromJson).rewards -}}
{{- $seconds = addf $seconds (float64 (default 600 .start_timeout_seconds)) -}}
{{- end -}}
{{- $seconds | ceil | int -}}
{{- end -}}

{{/* The ports of the judges' endpoints, separated by blanks. */}}
{{- define "slipstream.verifier.judgePorts" -}}
{{- $ports := list -}}
{{- range (include "slipstream.verifier.rewards" (list . "judge") | fromJson).rewards -}}
{{- $ports = append $ports (include "slipstream.ports.ofUrl" (toString .url)) -}}
{{- end -}}
{{- $ports | uniq | join " " -}}
{{- end -}}

{{/* The port and its name, which names the protocol. */}}
{{- define "slipstream.verifier.httpScheme" -}}
{{- ternary "http" "https" (eq .Values.tls.mode "none") -}}
{{- end -}}

{{- define "slipstream.verifier.volumes" -}}
{{- $name := include "slipstream.fullname" . -}}
{{- with .Values.verifier -}}
{{- if .models.existingClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ .models.existingClaim }}, readOnly: true}
{{- else if .models.hostPath }}
- name: models
  hostPath: {path: {{ .models.hostPath | quote }}, type: Directory}
{{- end }}
{{- with .judge.existingSecret }}
- name: judge-secrets
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if .code }}
- name: reward-code
  configMap: {name: {{ $name }}-reward-code}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "slipstream.verifier.mounts" -}}
{{- with .Values.verifier -}}
{{- if or .models.existingClaim .models.hostPath }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- if .judge.existingSecret }}
- {name: judge-secrets, mountPath: /run/secrets/judge, readOnly: true}
{{- end }}
{{- if .code }}
- {name: reward-code, mountPath: /code, readOnly: true}
{{- end }}
{{- end -}}
{{- end -}}
