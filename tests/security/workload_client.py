"""Calls the SPIFFE Workload API with the official gRPC client, in a network namespace it was put into; prints JSON.

nsenter -t PID -n python workload_client.py AUDIENCE
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import grpc

from ate.proto import spiffe_workload_pb2 as pb

ADDRESS = "169.254.17.1:8081"
OURS = (("workload.spiffe.io", "true"),)


def main() -> None:
    audience = sys.argv[1]
    channel = grpc.insecure_channel(ADDRESS)

    def unary(rpc: str, request: Any, reply: Any, metadata: Any = OURS) -> Any:
        method = channel.unary_unary(f"/SpiffeWorkloadAPI/{rpc}", lambda m: m.SerializeToString(), reply.FromString)
        return method(request, metadata=metadata, timeout=20)

    def first(rpc: str, request: Any, reply: Any) -> Any:
        method = channel.unary_stream(f"/SpiffeWorkloadAPI/{rpc}", lambda m: m.SerializeToString(), reply.FromString)
        stream = method(request, metadata=OURS, timeout=20)
        try:
            return next(stream)
        finally:
            stream.cancel()

    def refused(rpc: str, request: Any, reply: Any, metadata: Any = OURS) -> str:
        try:
            unary(rpc, request, reply, metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    (svid,) = first("FetchX509SVID", pb.X509SVIDRequest(), pb.X509SVIDResponse).svids
    ask = pb.JWTSVIDRequest(audience=[audience])
    (token,) = unary("FetchJWTSVID", ask, pb.JWTSVIDResponse).svids
    valid = unary(
        "ValidateJWTSVID", pb.ValidateJWTSVIDRequest(audience=audience, svid=token.svid), pb.ValidateJWTSVIDResponse
    )
    print(
        json.dumps(
            {
                "id": svid.spiffe_id,
                "chain": base64.b64encode(svid.x509_svid).decode(),
                "key": base64.b64encode(svid.x509_svid_key).decode(),
                "bundle": base64.b64encode(svid.bundle).decode(),
                "bundles": sorted(first("FetchX509Bundles", pb.X509BundlesRequest(), pb.X509BundlesResponse).bundles),
                "jwks": {
                    name: json.loads(keys)
                    for name, keys in first(
                        "FetchJWTBundles", pb.JWTBundlesRequest(), pb.JWTBundlesResponse
                    ).bundles.items()
                },
                "token": token.svid,
                "token_id": token.spiffe_id,
                "valid": valid.spiffe_id,
                "no header": refused("FetchJWTSVID", ask, pb.JWTSVIDResponse, ()),
                "another id": refused(
                    "FetchJWTSVID",
                    pb.JWTSVIDRequest(audience=["a"], spiffe_id="spiffe://substrate-actor.local/atespace/x/actor/y"),
                    pb.JWTSVIDResponse,
                ),
                "no audience": refused("FetchJWTSVID", pb.JWTSVIDRequest(), pb.JWTSVIDResponse),
                "another audience": refused(
                    "ValidateJWTSVID",
                    pb.ValidateJWTSVIDRequest(audience="b", svid=token.svid),
                    pb.ValidateJWTSVIDResponse,
                ),
                "junk": refused(
                    "ValidateJWTSVID", pb.ValidateJWTSVIDRequest(audience="b", svid="x.y.z"), pb.ValidateJWTSVIDResponse
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
