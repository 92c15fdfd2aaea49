#include "longspan/spec/expert_gemms.h"

#include <doctest/doctest.h>

#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {
namespace {

std::vector<ExpertGemm> gemms(const MixtureOfExpertsSpec& experts, int64_t parts = 1) {
  ModelSpec model;
  model.hidden_size = 64;
  LayerSpec layer;
  layer.feed_forward = experts;
  model.pattern = {layer, layer};
  std::vector<ExpertGemm> all;
  for (const UsedGemm& used : gemms_of_experts(model, parts, 1000)) {
    CHECK(used.num_rows == 2000);
    if (parts > 1) CHECK_FALSE((used.picked || used.placed));
    all.push_back(used.gemm);
  }
  return all;
}

TEST_CASE("gemms of experts: those of one product without a bias, once each") {
  MixtureOfExpertsSpec experts;
  experts.num_experts = 8;
  experts.experts_per_token = 2;
  experts.expert_size = 40;
  using Gemms = std::vector<ExpertGemm>;
  CHECK(gemms(experts) == Gemms{{8, 64, 40, false}, {8, 40, 64, false}, {8, 64, 40, true}});
  CHECK(gemms(experts, 2) == Gemms{{4, 64, 40, false}, {4, 40, 64, false}, {4, 64, 40, true}});
  experts.stacked = true;
  CHECK(gemms(experts) ==
        Gemms{{8, 64, 80, false}, {8, 40, 64, false}, {8, 64, 40, true}, {8, 80, 64, true}});
  experts.bias = true;
  CHECK(gemms(experts) == Gemms{{8, 64, 40, true}, {8, 80, 64, true}});
  experts.expert_size = 44;  // no kernel
  CHECK(gemms(experts).empty());
}

TEST_CASE("gemms of experts: GPUs with a library's grouped gemm") {
  for (const int capability : {90, 100, 103}) CHECK(library_groups_gemms(capability));
  for (const int capability : {0, 75, 80, 86, 89, 110, 120}) {
    CHECK_FALSE(library_groups_gemms(capability));
  }
}

}  // namespace
}  // namespace longspan
