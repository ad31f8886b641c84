{{/* Each takes (list ROOT COMPONENT). */}}
{{- define "causeway.labels" -}}
app.kubernetes.io/name: causeway
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "causeway.selector" -}}
{{ include "causeway.labels" . | fromYaml | toJson }}
{{- end }}

{{/* A StatefulSet's pods on nodes of their own. */}}
{{- define "causeway.apart" -}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector: {matchLabels: {{ include "causeway.selector" . }}}
        topologyKey: kubernetes.io/hostname
{{- end }}

{{/* Takes the user's number. */}}
{{- define "causeway.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "causeway.container" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* Takes (list NAME SIZE). */}}
{{- define "causeway.claim" -}}
volumeClaimTemplates:
  - metadata: {name: {{ first . }}}
    spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: {{ last . }}}}}
{{- end }}

{{- define "causeway.prometheus" -}}
- namespaceSelector: {}
  podSelector: {matchLabels: {app.kubernetes.io/name: prometheus}}
{{- end }}

{{- define "causeway.dns" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}
      podSelector: {matchLabels: {k8s-app: kube-dns}}
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{- define "causeway.etcd" -}}
{{- $name := printf "%s-etcd" .Release.Name -}}
{{- range $i := until 3 }}{{ if $i }},{{ end }}{{ $name }}-{{ $i }}.{{ $name }}:2379{{ end }}
{{- end }}
