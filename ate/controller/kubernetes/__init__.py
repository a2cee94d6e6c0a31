"""The controller on a Kubernetes cluster. Nothing outside of this folder knows Kubernetes."""
