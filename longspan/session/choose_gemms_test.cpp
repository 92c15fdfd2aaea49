#include "longspan/session/choose_gemms.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "longspan/testing/ranks.h"
#include "longspan/text/deferred_warnings.h"

namespace longspan {
namespace {

const std::vector<UsedGemm> kGemms{{{8, 16, 32, false}, 100, true, false},
                                   {{8, 32, 16, false}, 100, false, true},
                                   {{8, 16, 32, true}, 100, true, true}};
using Gemms = std::vector<ExpertGemm>;
using Measure = std::function<grouped::GemmTimes(int rank, const UsedGemm& gemm)>;

/// Returns the gemms that each of two ranks lets at::_grouped_mm compute.
std::vector<Gemms> agreed(const Measure& measure) {
  std::vector<Gemms> chosen(2);
  testing::run_ranks(2, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    const std::string wins =
        gemms_of_library(kGemms, [&](const UsedGemm& gemm) { return measure(rank, gemm); });
    chosen[rank] = agreed_gemms(kGemms, wins, mesh.world);
  });
  return chosen;
}

grouped::GemmTimes times(bool library_wins) {
  // Where it loses, it loses for skewed rows alone.
  return {.own = {1, 1}, .library = {0.5, library_wins ? 0.5 : 2}};
}

bool is_gemm(const UsedGemm& gemm, int i) { return gemm.gemm == kGemms[i].gemm; }

}  // namespace

TEST_CASE("gemms of experts: at::_grouped_mm computes what is faster on every rank") {
  // Rank 0 would take the first two, rank 1 the first and the last.
  const std::vector<Gemms> chosen = agreed(
      [](int rank, const UsedGemm& gemm) { return times(!is_gemm(gemm, rank == 0 ? 2 : 1)); });
  CHECK((chosen == std::vector(2, Gemms{kGemms[0].gemm})));
}

TEST_CASE("gemms of experts: a rank that cannot measure decides for all") {
  take_deferred_warnings();
  const std::vector<Gemms> chosen = agreed([](int rank, const UsedGemm& gemm) {
    TORCH_CHECK(rank == 0 || is_gemm(gemm, 0), "no kernel here\nand more");
    return times(true);
  });
  CHECK((chosen == std::vector(2, Gemms{})));
  const std::vector<std::string> warnings = take_deferred_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0].starts_with("warning: at::_grouped_mm cannot be used for experts on this GPU: "
                              "no kernel here. Longspan's"));
  // No other kernel can take its place after this.
  const auto measure_lost = [](const UsedGemm&) {
    TORCH_CHECK(false, "CUDA error: an illegal memory access was encountered");
    return times(true);
  };
  CHECK_THROWS_AS(gemms_of_library(kGemms, measure_lost), c10::Error);
  CHECK(take_deferred_warnings().empty());
}

TEST_CASE("gemms of experts: a gemm that memory is too short to measure is Longspan's") {
  take_deferred_warnings();
  const std::string wins = gemms_of_library(kGemms, [](const UsedGemm& gemm) {
    TORCH_CHECK_WITH(OutOfMemoryError, !is_gemm(gemm, 1), "no memory");
    return times(true);
  });
  CHECK(wins == "101");
  CHECK(take_deferred_warnings().empty());
}

TEST_CASE("gemms of experts: none is chosen where a rank has measured none") {
  std::vector<Gemms> chosen(2, Gemms{kGemms[0].gemm});
  testing::run_ranks(2, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    const bool measures = rank == 0;  // rank 1 has no kernels of its own
    chosen[rank] = agreed_gemms(measures ? kGemms : std::vector<UsedGemm>{}, measures ? "111" : "",
                                mesh.world);
  });
  CHECK((chosen == std::vector<Gemms>(2)));
}

}  // namespace longspan
