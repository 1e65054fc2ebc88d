#!/bin/sh
# runc for the pods of this node: gives them the oom_score_adj of Burstable pods from the API with a small request.
# kubelet takes the pods for static ones and gives them -997, as to pods that are critical for the node, which cgpause
# never pauses.
for word; do
    [ "$last" = --bundle ] && sed -i 's/"oomScoreAdj":-997/"oomScoreAdj":900/' "$word/config.json"
    last=$word
done
exec runc "$@"
