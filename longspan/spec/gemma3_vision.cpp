#include "longspan/spec/gemma3_vision.h"

namespace longspan {

VisionSpec::Names names_of_gemma3_vision() {
  return {.patches = "vision_tower.embeddings.patch_embedding",
          .positions = "vision_tower.embeddings.position_embedding",
          .blocks = "vision_tower.encoder.layers",
          .attention_norm = "layer_norm1",
          .mlp_norm = "layer_norm2",
          .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          .output = "self_attn.out_proj",
          .mlp = "mlp",
          .last_norm = "vision_tower.post_layernorm",
          .merger = "multi_modal_projector",
          .deepstack = {}};
}

}  // namespace longspan
