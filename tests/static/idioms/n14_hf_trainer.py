from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def main():
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
    dataset = load_dataset("glue", "sst2").map(lambda rows: tokenizer(rows["sentence"], truncation=True), batched=True)
    args = TrainingArguments(
        output_dir="out",
        fp16=True,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        num_train_epochs=3,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=dataset["train"],
        eval_dataset=dataset["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
