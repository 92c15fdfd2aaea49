#include <doctest/doctest.h>

#include <set>
#include <string>

#include "longspan/models/family.h"

namespace longspan {
namespace {

TEST_CASE("families: each is in the register once, and named in messages and help") {
  std::set<std::string> types;
  for (const Family* family : all_families()) {
    CHECK(types.insert(family->model_type).second);
    CHECK(describe_families().find(shown_type(*family)) != std::string::npos);
    const bool is_alone = model_types().find(family->model_type) != std::string::npos;
    CHECK(is_alone == family->may_be_alone);
    CHECK((family_of_type(family->model_type) == family) == family->may_be_alone);
    CHECK((family->may_be_alone || family->composite));
  }
  CHECK(describe_composites() ==
        "qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe, mistral3 and gemma3");
  CHECK(describe_models_of_pictures() ==
        "qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, qwen3_5, qwen3_5_moe and gemma3");
  CHECK(describe_families().starts_with("qwen2 (Qwen2, Qwen2.5), qwen3"));
  CHECK(model_types().starts_with("qwen2, qwen3"));
  const std::string last = all_families().back()->model_type;
  CHECK(model_types().ends_with(" or " + last));
}

}  // namespace
}  // namespace longspan
