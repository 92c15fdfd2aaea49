// Names of the parameters of Gemma 3's vision tower and projector. No torch.
#pragma once

#include "longspan/spec/vision_spec.h"

namespace longspan {

VisionSpec::Names names_of_gemma3_vision();

}  // namespace longspan
