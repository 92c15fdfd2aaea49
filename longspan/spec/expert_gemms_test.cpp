#include "longspan/spec/expert_gemms.h"

#include <doctest/doctest.h>

#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {
namespace {

std::vector<ExpertGemm> gemms(const MixtureOfExpertsSpec& experts, int64_t parts = 1,
                              int64_t num_tokens = 1000, int64_t num_rows = 2000) {
  ModelSpec model;
  model.hidden_size = 64;
  LayerSpec layer;
  layer.feed_forward = experts;
  model.pattern = {layer, layer};
  std::vector<ExpertGemm> all;
  for (const UsedGemm& used : gemms_of_experts(model, parts, num_tokens)) {
    CHECK(used.num_rows == num_rows);
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

TEST_CASE("gemms of experts: rows of a chunk of 256 MiB, and of other ranks, at most 2^18") {
  MixtureOfExpertsSpec experts;
  experts.num_experts = 8;
  experts.experts_per_token = 2;
  experts.expert_size = 1024;
  CHECK(gemms(experts, 1, 10'000'000, (256 << 20) / (1024 * 2)).size() == 3);
  CHECK(gemms(experts, 4, 100'000, 200'000).size() == 3);
  CHECK(gemms(experts, 4, 10'000'000, 1 << 18).size() == 3);
}

TEST_CASE("gemms of experts: GPUs with a library's grouped gemm") {
  for (const int capability : {90, 100, 103}) CHECK(library_groups_gemms(capability));
  for (const int capability : {0, 75, 80, 86, 89, 110, 120}) {
    CHECK_FALSE(library_groups_gemms(capability));
  }
}

}  // namespace
}  // namespace longspan
