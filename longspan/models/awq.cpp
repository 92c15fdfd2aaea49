// AWQ (arXiv 2306.00978), as AutoAWQ saves it.
#include "longspan/models/grouped_format.h"

namespace longspan {
namespace {

constexpr GroupedFormat::Version kAwqVersions[] = {{"gemm"}};

}  // namespace

extern const GroupedFormat kAwq{.method = "awq",
                                .name = "AWQ",
                                .own_file = "quant_config.json",
                                .versions = kAwqVersions,
                                .order = {false, {0, 4, 1, 5, 2, 6, 3, 7}},
                                .has_group_indices = false};

}  // namespace longspan
