// GPTQ (arXiv 2210.17323), as AutoGPTQ and GPTQModel save it.
#include "longspan/models/grouped_format.h"

namespace longspan {
namespace {

constexpr GroupedFormat::Version kGptqVersions[] = {{"gptq", 1}, {"gptq_v2", 0}};

}  // namespace

extern const GroupedFormat kGptq{.method = "gptq",
                                 .name = "GPTQ",
                                 .own_file = "quantize_config.json",
                                 .versions = kGptqVersions,
                                 .order = {true, {0, 1, 2, 3, 4, 5, 6, 7}},
                                 .has_group_indices = true};

}  // namespace longspan
