{{- define "tinker-atropos.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "tinker-atropos.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "tinker-atropos.name" . }}
{{- if contains $name .Release.Name }}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s-operator" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tinker-atropos.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tinker-atropos.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "tinker-atropos.labels" -}}
{{ include "tinker-atropos.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tinker-atropos.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tinker-atropos.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/*
Refuses to be a second operator for the same runs: each would undo what the other one writes. Nothing is looked up without
a cluster (helm template, dry runs); and only in the namespaces looked after when the release is made of namespaced objects
alone, since who installs it need not have rights on the whole cluster.
*/}}
{{- define "tinker-atropos.alone" -}}
{{- $root := . }}
{{- $mine := list }}
{{- if .Values.watchNamespaces }}{{ $mine = append .Values.watchNamespaces .Release.Namespace | uniq }}{{ end }}
{{- $namespaced := and $mine (not .Values.crds.enabled) (not (and .Values.rbac.create .Values.rbac.aggregateRoles)) }}
{{- range $place := ternary $mine (list "") (not (empty $namespaced)) }}
{{- range $other := (lookup "apps/v1" "Deployment" $place "").items }}
{{- $labels := $other.metadata.labels | default dict }}
{{- $chart := hasPrefix (printf "%s-" $root.Chart.Name) (index $labels "helm.sh/chart" | default "") }}
{{- $release := index $labels "app.kubernetes.io/instance" | default "" }}
{{- $namespace := $other.metadata.namespace }}
{{- $self := and (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace) }}
{{- if and $chart (eq (index $labels "app.kubernetes.io/component" | default "") "operator") (not $self) }}
{{- $theirs := list }}
{{- range (index $other.spec.template.spec.containers 0).args }}
{{- if hasPrefix "--watch-namespaces=" . }}
{{- $theirs = append (trimPrefix "--watch-namespaces=" . | splitList ",") $namespace | uniq }}
{{- end }}
{{- end }}
{{- $both := list }}
{{- if and $mine $theirs }}
{{- range $mine }}{{ if has . $theirs }}{{ $both = append $both . }}{{ end }}{{ end }}
{{- else }}
{{- $both = $mine | default $theirs | default (list "all namespaces") }}
{{- end }}
{{- if $both }}
{{- fail (printf "the operator of release %s in namespace %s looks after runs of %s already, and two would work against each other. Go on with that one (helm upgrade %s --namespace %s), or remove it first (helm uninstall %s --namespace %s; runs stay), or give each its own namespaces (watchNamespaces of both; a release's own namespace is among them)" $release $namespace (join ", " $both) $release $namespace $release $namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Reference of an image: (list image root) */}}
{{- define "tinker-atropos.image" -}}
{{- $image := index . 0 }}{{- $root := index . 1 }}{{- $common := $root.Values.images -}}
{{- $repository := $image.repository }}
{{- if $common.registry }}
{{- $repository = printf "%s/%s" (trimSuffix "/" $common.registry) (base $image.repository) }}
{{- end }}
{{- printf "%s:%s" $repository (coalesce $image.tag $common.tag $root.Chart.AppVersion) }}
{{- end }}

{{/* What the operator may do to runs and their objects, in every namespace that it looks after. */}}
{{- define "tinker-atropos.runRules" -}}
- apiGroups: [tinker-atropos.dev]
  resources: [tinkeratroposruns]
  verbs: [get, list, watch]
- apiGroups: [tinker-atropos.dev]
  resources: [tinkeratroposruns/status]
  verbs: [patch]
# Owner references that block their owner's deletion need this where the API server checks it.
- apiGroups: [tinker-atropos.dev]
  resources: [tinkeratroposruns/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# Each run's token is written, and no Secret of a run's namespace is ever read.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
# Read only to say why the trainer's Job has no pod (a quota).
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, list]
{{- end }}
