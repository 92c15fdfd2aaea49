// The choice between at::_grouped_mm and Longspan's kernel for gemms of experts, by measurement.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/kernels/grouped_library.h"
#include "longspan/spec/expert_gemms.h"

namespace longspan {

/// Returns '1' for each gemm that at::_grouped_mm computes faster than Longspan's kernel on this
/// rank's GPU, else '0', also if memory is too short to measure it. After an error of
/// at::_grouped_mm all are '0', and a warning is deferred. Rethrows errors of the GPU. `time`:
/// measures one gemm.
std::string gemms_of_library(const std::vector<UsedGemm>& gemms,
                             const std::function<grouped::GemmTimes(const UsedGemm&)>& time);

/// Returns the gemms that at::_grouped_mm computes faster on all ranks, the same on all ranks: none
/// if ranks have measured different numbers of gemms. `wins`: gemms_of_library() of this rank.
/// Collective.
std::vector<ExpertGemm> agreed_gemms(const std::vector<UsedGemm>& gemms, const std::string& wins,
                                     const Group& world);

}  // namespace longspan
