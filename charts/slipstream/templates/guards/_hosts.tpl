{{/* Guards on the network and the DNS of pods that use those of their node. */}}

{{- define "slipstream.guards.hosts" -}}
{{- range (include "slipstream.rooms" . | fromJson).rooms -}}
{{- $where := .where -}}
{{- with .room -}}
{{- if and .hostNetwork (eq .dnsPolicy "ClusterFirst") }}
{{ $where }}.dnsPolicy is ClusterFirst, which finds no Service from the network of a node: leave it empty, or set ClusterFirstWithHostNet
{{- end }}
{{- if and (eq .dnsPolicy "None") (not (dig "nameservers" list .dnsConfig)) }}
{{ $where }}.dnsPolicy is None, without a name server: set {{ $where }}.dnsConfig.nameservers, or leave dnsPolicy empty
{{- end }}
{{- if and .hostNetwork $.Values.network.policies (not $.Values.network.nodeCIDRs) }}
{{ $where }}.hostNetwork is true, and the NetworkPolicies of the other pods know such a pod by the address of its node alone: set network.nodeCIDRs to the addresses of the nodes, or network.policies to false
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
