"""What a job shall do: the one place where defaults are filled in and values are checked.

Clients send a `DistillSpec` message with what they care for; the service keeps the job's spec whole, and the trainer reads it
from `spec.json` in the job's directory. No torch here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from google.protobuf.json_format import MessageToDict, ParseDict
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ladr.errors import InvalidRequest
from ladr.v1.distiller_pb2 import DistillSpec

Source = Annotated[str, Field(max_length=1024)]
Share = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]


class Part(BaseModel):
    """A group of values; frozen, and without keys that nobody reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Student(Part):
    """The student to make. `layers` 0: two thirds of the teacher's; `source` "": the teacher itself."""

    kind: Literal["depth", "width", "model"] = "depth"
    layers: int = Field(0, ge=0, le=4096)
    choice: Literal["block_influence", "every_kth"] = "block_influence"
    layer_indices: tuple[Annotated[int, Field(ge=0, lt=4096)], ...] = Field((), max_length=4096)
    feed_forward: Share = 0.5
    heads: Share = 1.0
    source: Source = ""

    @model_validator(mode="after")
    def _whole(self) -> Student:
        if list(self.layer_indices) != sorted(set(self.layer_indices)):
            raise ValueError("give layer_indices in ascending order, each once")
        return self


class Data(Part):
    """The texts to learn from."""

    path: Source = ""
    sequence_tokens: int = Field(512, ge=16, le=131_072)
    score_prompts: bool = False
    holdout: float = Field(0.05, gt=0, lt=1)
    answers_from: Source = ""
    answer_tokens: int = Field(256, ge=1, le=131_072)


class Objective(Part):
    """The loss; see `objective`."""

    temperature: float = Field(3.0, gt=0, le=1000)
    task_weight: Weight = 1.0
    kl_weight: Weight = 0.8
    attention_weight: Weight = 0.2
    divergence: Literal["kl", "reverse_kl", "jsd"] = "kl"
    jsd_beta: float = Field(0.5, gt=0, lt=1)
    on_policy: float = Field(0.0, ge=0, le=1)
    hidden_weight: Weight = 0.0
    teacher_top_k: int = Field(0, ge=0, le=4096)
    refusal_weight: Weight = 0.0

    @model_validator(mode="after")
    def _whole(self) -> Objective:
        if not any((self.task_weight, self.kl_weight, self.attention_weight, self.hidden_weight)):
            raise ValueError("every weight is 0: there is nothing to learn")
        if self.on_policy and not self.kl_weight:
            raise ValueError(
                "on_policy learns what the teacher makes of the student's answers: give a kl_weight over 0"
            )
        if self.teacher_top_k and self.divergence != "kl":
            raise ValueError("teacher_top_k goes with the divergence 'kl' only")
        if self.teacher_top_k and self.on_policy:
            raise ValueError("teacher_top_k stores logits of fixed texts: it does not go with on_policy")
        return self


class Training(Part):
    """The training. `threads` 0: the service's setting; `device` "": cuda where there is one; `warmup_steps` None: a 20th."""

    steps: int = Field(200, ge=0, le=10_000_000)
    batch_sequences: int = Field(8, ge=1, le=65_536)
    micro_sequences: int = Field(2, ge=1, le=4096)
    learning_rate: float = Field(5e-4, gt=0, le=1)
    warmup_steps: int | None = Field(None, ge=0)
    weight_decay: float = Field(0.01, ge=0, le=1)
    clip_norm: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0, lt=1 << 63)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)?$")] = ""
    processes: int = Field(1, ge=1, le=1024)
    threads: int = Field(0, ge=0, le=1024)
    checkpoint_steps: int = Field(50, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> Training:
        if self.batch_sequences % (self.micro_sequences * self.processes):
            raise ValueError("batch_sequences must be a multiple of micro_sequences × processes")
        return self


class Evaluation(Part):
    """What is measured at the end."""

    tokens: int = Field(20_000, ge=100, le=100_000_000)
    battles: int = Field(32, ge=0, le=100_000)
    judge: Literal["likelihood", "router"] = "likelihood"
    judge_model: Source = ""
    answer_tokens: int = Field(64, ge=1, le=4096)
    refusal_pairs: int = Field(12, ge=0, le=1000)

    @model_validator(mode="after")
    def _whole(self) -> Evaluation:
        if self.battles and self.judge == "router" and not self.judge_model:
            raise ValueError("a judge behind the router needs its served name as judge_model")
        return self


Repair = Literal["smooth", "keep_sensitive", "lora"]


class Int8(Part):
    """The student in 8 bits."""

    kind: Literal["none", "weight_only", "w8a8"] = "none"
    dialogues: int = Field(5000, ge=1, le=1_000_000)
    threshold: float = Field(0.02, gt=0, le=100)
    goal: float = Field(0.008, gt=0, le=100)
    repairs: tuple[Repair, ...] = Field(("smooth", "keep_sensitive", "lora"), max_length=3)
    publish_above: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Int8:
        if self.goal > self.threshold:
            raise ValueError("goal may not be above threshold")
        if len(set(self.repairs)) < len(self.repairs):
            raise ValueError("name each repair once")
        return self


class Spec(Part):
    """A whole job."""

    teacher: Source = ""
    student: Student = Student()
    data: Data = Data()
    objective: Objective = Objective()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    int8: Int8 = Int8()

    @model_validator(mode="after")
    def _whole(self) -> Spec:
        if self.objective.on_policy and self.training.processes > 1:
            raise ValueError("on_policy samples in one process only: set training.processes to 1")
        return self


def from_message(message: DistillSpec) -> Spec:
    """The job that a client asks for, defaults filled in.

    Raises: InvalidRequest: names the field and what it must be.
    """
    values: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    seed = values.get("training", {}).get("seed")
    if seed is not None:
        values["training"]["seed"] = int(seed)  # JSON has 64-bit numbers as text
    try:
        return Spec.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(("spec", *(str(part) for part in first["loc"])))
        raise InvalidRequest(first["msg"].removeprefix("Value error, "), field=field) from None


def to_message(spec: Spec) -> DistillSpec:
    """The job as clients see it."""
    return ParseDict(spec.model_dump(mode="json", exclude_none=True), DistillSpec())
