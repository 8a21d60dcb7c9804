{{/* Guards on the console: its token, the claim that it shares with the learner, and the names of its Ingress. */}}

{{- define "slipstream.guards.console" -}}
{{- $console := .Values.console -}}
{{- if $console.enabled -}}
{{- if not $console.token.existingSecret }}
console.token.existingSecret is empty: `kubectl create secret generic {{ .Release.Name }}-console-token --namespace {{ .Release.Namespace }} --from-literal=token="$(openssl rand -hex 32)"`, and set it to {{ .Release.Name }}-console-token
{{- end }}
{{- include "slipstream.guards.sharedClaim" . }}
{{- if and $console.allowScaling (not $console.allowControl) }}
console.allowScaling is true, and console.allowControl is false, so visitors can only look: set both
{{- end }}
{{- if and $console.ingress.enabled (not $console.hostNames) }}
console.ingress is enabled, and console.hostNames is empty: set it to the names of the Ingress, which the console has to answer to
{{- end }}
{{- if and $console.ingress.enabled .Values.network.policies (not $console.peers) }}
console.ingress is enabled, and the NetworkPolicies let its controller reach no pod: set console.peers to where the controller runs
{{- end }}
{{- end }}
{{- end -}}

{{/* The access modes of a claim of the user are not known. */}}
{{- define "slipstream.guards.sharedClaim" -}}
{{- $checkpoints := .Values.learner.checkpoints -}}
{{- $modes := join ", " $checkpoints.accessModes -}}
{{- if not (or $checkpoints.existingClaim (has "ReadWriteMany" $checkpoints.accessModes)) -}}
{{- if has "ReadWriteOncePod" $checkpoints.accessModes }}
console.enabled is true, and learner.checkpoints.accessModes is [{{ $modes }}], a claim that no second pod can mount: set it to [ReadWriteMany] with a storage class that has it
{{- else if not .Values.console.besideLearner }}
console.enabled is true, and learner.checkpoints.accessModes is [{{ $modes }}], a claim that one node can mount: set it to [ReadWriteMany] with a storage class that has it, or console.besideLearner to true
{{- end }}
{{- end -}}
{{- end -}}
