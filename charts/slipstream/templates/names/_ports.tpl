{{/* The ports of the services. */}}
{{- define "slipstream.ports.replay" -}}50051{{- end -}}
{{- define "slipstream.ports.verifier" -}}50052{{- end -}}
{{- define "slipstream.ports.learner" -}}50053{{- end -}}
{{- define "slipstream.ports.rollout" -}}50054{{- end -}}
{{- define "slipstream.ports.teacher" -}}50055{{- end -}}
{{- define "slipstream.ports.console" -}}8080{{- end -}}
{{- define "slipstream.ports.weights" -}}29500{{- end -}}
{{- define "slipstream.ports.ranks" -}}29400{{- end -}}
{{- define "slipstream.ports.engine" -}}29600{{- end -}}
{{- define "slipstream.ports.redis" -}}6379{{- end -}}
{{- define "slipstream.ports.metrics" -}}9464{{- end -}}

{{/* The ports of the main container of a component, as JSON {name: number}. Takes (list $ COMPONENT). */}}
{{- define "slipstream.ports.of" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $ports := dict -}}
{{- if eq $component "redis" -}}
{{- $_ := set $ports "redis" (include "slipstream.ports.redis" $root) -}}
{{- else if eq $component "console" -}}
{{- $_ := set $ports "http" (include "slipstream.ports.console" $root) -}}
{{- else if ne $component "test" -}}
{{- if ne $component "actor" -}}
{{- $_ := set $ports "grpc" (include (printf "slipstream.ports.%s" $component) $root) -}}
{{- end -}}
{{- $_ := set $ports "metrics" (include "slipstream.ports.metrics" $root) -}}
{{- end -}}
{{- if eq $component "learner" -}}
{{- $_ := set $ports "weights" (include "slipstream.ports.weights" $root) -}}
{{- $_ := set $ports "ranks" (include "slipstream.ports.ranks" $root) -}}
{{- else if eq $component "rollout" -}}
{{- $_ := set $ports "engine" (include "slipstream.ports.engine" $root) -}}
{{- else if and (eq $component "verifier") $root.Values.verifier.http.enabled -}}
{{- $_ := set $ports (include "slipstream.verifier.httpScheme" $root) (toString $root.Values.verifier.http.port) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* The address of a server: all addresses of IPv6 and of IPv4. Takes the port. */}}
{{- define "slipstream.listen" -}}[::]:{{ . }}{{- end -}}

{{/* The port of a URL, or the default port of its scheme. Takes the URL. */}}
{{- define "slipstream.ports.ofUrl" -}}
{{- $server := regexFind "^https?://[^/?#]+" . -}}
{{- $usual := ternary "80" "443" (hasPrefix "http:" $server) -}}
{{- default $usual (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $server)) -}}
{{- end -}}
