// What the tables of keys (config/*_keys.cpp), one for each section of the help, are written with.
// No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "longspan/config/keys.h"

namespace longspan::key_tables {

// What is counted stays small enough that products of it, rows of a step and tokens of a
// micro-batch, can be counted too, and that nothing is made of a mistyped number alone.
inline constexpr double kMostTokens = INT32_MAX;  // of a row
inline constexpr double kMostRows = 1e6;          // of a micro-batch, micro-batches of a step
inline constexpr double kMostSteps = 1e15;
inline constexpr double kMostEpochs = 1e9;
inline constexpr double kMostProcesses = 4096;  // of a machine
inline constexpr double kMostSeconds = 1e9;     // some 30 years

/// A number of at least `least`.
Key number(std::string_view name, Field field, OnResume on_resume, double least,
           std::string_view help, double most = std::numeric_limits<double>::infinity());
/// One of the words `choices`. `others`: words that LLaMA-Factory has beside them; one that is a
/// choice by now is no longer unsupported.
Key choice(std::string_view name, Field field, OnResume on_resume,
           std::vector<std::string_view> choices, std::string_view help,
           std::vector<std::string_view> others = {});
/// A count of steps, or a share of them.
Key steps(std::string_view name, Field field, OnResume on_resume, std::string_view help,
          bool none_allowed = false);
/// Text or a truth value.
Key plain(std::string_view name, Field field, OnResume on_resume, std::string_view help);

/// The key, which one finetuning_type alone uses (Key::finetuning_type).
Key only_for(FinetuningType type, Key key);

/// The key, which LLaMA-Factory has otherwise (Key::differs).
Key noted(Key key, std::string_view differs);
inline constexpr std::string_view kOwn = "It has no such key.";
inline constexpr std::string_view kDeepSpeed =
    "It has no such key; a DeepSpeed file says it, which the key deepspeed takes here too.";
inline constexpr std::string_view kShare =
    "It has no sequence parallelism in its main trainer; the name is 360-LLaMA-Factory's.";

KeySection model_keys();
KeySection method_keys();
KeySection preference_keys();
KeySection data_keys();
KeySection output_keys();
KeySection optimization_keys();
KeySection memory_keys();
KeySection parallel_keys();
KeySection export_keys();

}  // namespace longspan::key_tables
