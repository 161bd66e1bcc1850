#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "cleave/mesh/scalar_type.h"
#include "cleave/verify/verify.h"

namespace cleave::inline verify {
namespace {

using Object = nlohmann::ordered_json;
using Of = Comparison::Of;
using Kind = VerifiedPart::Kind;

std::string short_number(double x) {
  TextStream out;
  out << std::scientific << std::setprecision(1) << x;
  return x == 0 ? "0" : std::move(out).str();
}

std::string exact_number(double x) {
  TextStream out;
  out << std::setprecision(9) << x;
  return std::move(out).str();
}

/// The matching value with the largest ratio of distance to bound; null if there is none.
template <class Matches>
const Comparison* worst_of(const VerifiedPart& part, const Matches& matches) {
  const Comparison* worst = nullptr;
  const auto share = [](const Comparison& c) { return c.distance == 0 ? 0 : c.distance / c.bound; };
  for (const Comparison& c : part.values) {
    if (matches(c) && (worst == nullptr || share(c) > share(*worst))) worst = &c;
  }
  return worst;
}

const Comparison* worst_of(const VerifiedPart& part, Of of) {
  return worst_of(part, [of](const Comparison& c) { return c.of == of; });
}

std::string cell(const Comparison* c) {
  if (c == nullptr) return "-";
  return short_number(c->distance) + (c->agrees() ? "" : " !");
}

/// The step without dropout, which has the stepped weights.
const VerifiedPart& step_of(const VerifyReport& report) {
  for (const VerifiedPart& part : report.parts) {
    if (part.kind == Kind::kStep) return part;
  }
  CLEAVE_BUG("a report has no step");
}

using Row = std::vector<std::string>;

Row row_of(const VerifyReport& report, const VerifiedPart& part) {
  const bool is_root = part.name == "the model";
  const auto stepped = [&](const Comparison& c) {
    return c.of == Of::kStepped && (is_root || c.subject.starts_with(part.name + "."));
  };
  const Comparison* all = worst_of(part, [](const Comparison&) { return true; });
  const double share = all->distance == 0 ? 0 : all->distance / all->bound;
  return {part.name,
          cell(worst_of(part, Of::kOutput)),
          cell(worst_of(part, Of::kInputGradient)),
          cell(worst_of(part, Of::kGradient)),
          cell(worst_of(part, Of::kNorm)),
          part.kind == Kind::kLayer ? cell(worst_of(step_of(report), stepped)) : "-",
          share > 9.99 ? short_number(share) : exact_number(std::round(share * 1000) / 1000),
          str(part.bytes)};
}

/// A table whose first `num_texts` columns are texts (left-aligned) and the others numbers.
std::string table(const std::vector<Row>& rows, size_t num_texts) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      text += i == 0 ? "" : "  ";
      text += i < num_texts ? row[i] + padding : padding + row[i];
    }
    text += '\n';
  }
  return text;
}

/// Parts with dropout are only shown if they differ.
bool is_shown(const VerifiedPart& part) {
  if (part.kind != Kind::kLayer && part.kind != Kind::kLoss) return false;
  return !part.name.ends_with(" with dropout") || part.first_difference() != nullptr;
}

std::string layer_table(const VerifyReport& report) {
  std::vector<Row> rows{
      {"layer", "output", "d input", "d weights", "norm", "after a step", "dist/bound", "bytes"}};
  for (const VerifiedPart& part : report.parts) {
    if (is_shown(part)) rows.push_back(row_of(report, part));
  }
  return table(rows, 1);
}

std::string whole_table(const VerifyReport& report) {
  std::vector<Row> rows{{"whole model", "largest difference", "distance", "bound"}};
  for (const VerifiedPart& part : report.parts) {
    if (part.kind == Kind::kLayer || part.kind == Kind::kLoss) continue;
    for (const Of of : {Of::kStart, Of::kLoss, Of::kOutput, Of::kGradient, Of::kNorm, Of::kStepped,
                        Of::kDecoded, Of::kIds}) {
      const Comparison* c = worst_of(part, of);
      if (c == nullptr) continue;
      const std::string mark = c->agrees() ? "" : " !";
      rows.push_back(
          {part.name, c->quantity(), short_number(c->distance) + mark, short_number(c->bound)});
    }
  }
  return table(rows, 2);
}

std::string layout_text(const VerifySettings& s) {
  std::string text = str("tp ", s.tp, ", dp ", s.dp);
  if (s.ep > 1) text += str(", ep ", s.ep);
  if (s.sequence_parallel) text += ", sequence parallel";
  return text + str(", ", name(dtype_of(s.dtype)), ", seed ", s.seed);
}

Object as_json(const Comparison& c) {
  return {{"quantity", c.quantity()}, {"distance", c.distance}, {"bound", c.bound}, {"at", c.at},
          {"split", c.split},         {"one_rank", c.whole}};
}

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::kWeights:
      return "weights";
    case Kind::kLayer:
      return "layer";
    case Kind::kLoss:
      return "loss";
    case Kind::kStep:
      return "step";
    case Kind::kDecode:
      return "decode";
    case Kind::kIds:
      return "ids";
  }
  CLEAVE_BUG("no part has the kind ", static_cast<int>(kind));
}

/// The verdict when decoding with the KV cache gives other logits than whole sequences.
std::string decoding_verdict(const Comparison& c) {
  return str("decoding with the KV cache differs from a run of the whole sequence: ", c.quantity(),
             " differ by ", short_number(c.distance), " (rounding explains ", short_number(c.bound),
             "): at [", list_text(c.at), "] it is ", exact_number(c.split), ", without the cache ",
             exact_number(c.whole),
             "; layers that mix tokens must read the earlier ones from Context::cache "
             "(HeadAttention does), and positions must be Context::positions or follow the cache");
}

}  // namespace

std::string verdict(const VerifyReport& report) {
  const VerifiedPart* part = report.first_difference();
  if (part == nullptr) {
    return "the sharded model matches the model on one rank (" + layout_text(report.settings) + ")";
  }
  const Comparison& c = *part->first_difference();
  if (c.of == Of::kDecoded) return decoding_verdict(c);
  const std::string values =
      c.of == Of::kIds ? str(": id ", c.split, " on ", report.settings.tp, " ranks, id ", c.whole,
                             " on one rank; their scores differ by ", short_number(c.distance),
                             " (rounding explains ", short_number(c.bound), ")")
                       : str(" differs by ", short_number(c.distance), " (rounding explains ",
                             short_number(c.bound), "): at [", list_text(c.at), "] it is ",
                             exact_number(c.split), ", on one rank ", exact_number(c.whole));
  const std::string subject =
      part->kind == Kind::kLayer
          ? "the first layer that differs is " + part->name
          : "no single layer differs; the first part that differs is " + part->name;
  return str(subject, ": ", c.quantity(), values);
}

std::string report_text(const VerifyReport& report) {
  std::string text = layer_table(report) + '\n' + whole_table(report) + '\n';
  for (const std::string& note : report.notes) text += "note: " + note + '\n';
  return text + verdict(report) + '\n';
}

std::string report_json(const VerifyReport& report, const std::string& model) {
  const VerifySettings& s = report.settings;
  Object out = {{"model", model},
                {"tp", s.tp},
                {"dp", s.dp},
                {"ep", s.ep},
                {"sequence_parallel", s.sequence_parallel},
                {"dtype", name(dtype_of(s.dtype))},
                {"seed", s.seed}};
  const VerifiedPart* first = report.first_difference();
  out["agrees"] = first == nullptr;
  out["first_difference"] = nullptr;
  if (first != nullptr) {
    out["first_difference"] = as_json(*first->first_difference());
    out["first_difference"]["part"] = first->name;
  }
  out["parts"] = Object::array();
  for (const VerifiedPart& part : report.parts) {
    Object values = Object::array();
    for (const Comparison& c : part.values) values.push_back(as_json(c));
    out["parts"].push_back({{"name", part.name},
                            {"kind", kind_name(part.kind)},
                            {"bytes", part.bytes},
                            {"values", values}});
  }
  out["notes"] = report.notes;
  return out.dump(-1, ' ', false, Object::error_handler_t::replace);
}

}  // namespace cleave::inline verify
