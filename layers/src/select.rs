//! Finds the model of a call and its prices: `Request<Call>` → `Request<Priced>`. The layer reads the catalog once per
//! call. The call keeps this model and these prices until it ends.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::{BodyExt, Full};
//! use tollgate_layers::{
//!     Error, body,
//!     call::Priced,
//!     model::{Found, Model, Models},
//!     parse::{ParseLayer, ParseLimits},
//!     price::{Price, Rate},
//!     select::SelectLayer,
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! /// A catalog of one model.
//! #[derive(Clone)]
//! struct Catalog(Arc<Model>, Arc<Price>);
//!
//! impl Models for Catalog {
//!     fn find_model(&self, id: &str) -> Found {
//!         if id == self.0.id {
//!             Found::Callable(Arc::clone(&self.0), Arc::clone(&self.1).into())
//!         } else {
//!             Found::Unknown
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let model = Model::new("small", 4096);
//! let rubles_for_a_million = |rubles: u64| Rate::new(rubles * 1_000_000);
//! let price = Price {
//!     input: rubles_for_a_million(100),
//!     cached_input: rubles_for_a_million(10),
//!     output: rubles_for_a_million(400),
//!     cache_write: rubles_for_a_million(125),
//!     version: 1,
//!     exchange_rate: "90.50".into(),
//!     ..Price::default()
//! };
//! let service = ServiceBuilder::new()
//!     .layer(ParseLayer::new(ParseLimits::default()))
//!     .layer(SelectLayer::without_ledger(Catalog(Arc::new(model), Arc::new(price))))
//!     .service_fn(|req: Request<Priced>| async move {
//!         let Priced { prices, output_tokens, .. } = req.into_body();
//!         let text = format!("up to {output_tokens} tokens at {} ₽ a million", prices.usual.output);
//!         Ok::<_, Error>(Response::new(body::full(text)))
//!     });
//! let ask = |model: &str| {
//!     let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hi"}}]}}"#);
//!     Request::post("/v1/chat/completions").body(Full::new(Bytes::from(body))).unwrap()
//! };
//!
//! let answer = service.clone().oneshot(ask("small")).await?.into_body().collect().await?;
//! assert_eq!(answer.to_bytes(), "up to 4096 tokens at 400.00 ₽ a million");
//!
//! let refused = service.oneshot(ask("large")).await;
//! assert!(matches!(refused, Err(Error::ModelUnknown { model, .. }) if model == "large"));
//! # Ok(())
//! # }
//! ```

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    call::{Ask, Call, Format, Priced},
    error::{BoxError, Error, Problem},
    facts::Caller,
    key::Funds,
    model::{Found, Model, Models, Route},
    price::{Class, PriceList, Unpriced},
    usage::Meter,
};
pub use crate::{
    forward::{Below, ResponseFuture},
    key::WithoutLedger,
};

/// Refuses a call whose model is unknown, has no price, is not allowed for the key, or is of another kind than the
/// call. Also refuses a call that requests something for which the model has no price.
///
/// This layer checks the key's funds only if a model is unknown or has no price. A key that has nothing to spend then
/// gets the error about its funds, and not the error about the model.
///
/// The input of this layer is the output of `parse`, so a stack with this layer above `parse` does not compile:
///
/// ```
/// # use http::{Request, Response};
/// # use tollgate_layers::{
/// #     Error, body::AnswerBody, call::{Call, Priced}, model::{Found, Models}, select::SelectLayer,
/// # };
/// # use tower::{Service, ServiceBuilder};
/// # #[derive(Clone)]
/// # struct Catalog;
/// # impl Models for Catalog {
/// #     fn find_model(&self, _: &str) -> Found {
/// #         Found::Unknown
/// #     }
/// # }
/// # fn takes<B, S: Service<Request<B>>>(_: S) {}
/// # async fn inner(_: Request<Priced>) -> Result<Response<AnswerBody>, Error> {
/// #     Err(Error::Draining)
/// # }
/// let select = SelectLayer::without_ledger(Catalog);
/// takes::<Call, _>(ServiceBuilder::new().layer(select).service_fn(inner));
/// ```
///
/// ```compile_fail
/// # use bytes::Bytes;
/// # use http::{Request, Response};
/// # use tollgate_layers::{
/// #     Error, body::AnswerBody, call::{Call, Priced}, model::{Found, Models}, select::SelectLayer,
/// # };
/// # use tower::{Service, ServiceBuilder};
/// # #[derive(Clone)]
/// # struct Catalog;
/// # impl Models for Catalog {
/// #     fn find_model(&self, _: &str) -> Found {
/// #         Found::Unknown
/// #     }
/// # }
/// # fn takes<B, S: Service<Request<B>>>(_: S) {}
/// # async fn inner(_: Request<Priced>) -> Result<Response<AnswerBody>, Error> {
/// #     Err(Error::Draining)
/// # }
/// let select = SelectLayer::without_ledger(Catalog);
/// takes::<Bytes, _>(ServiceBuilder::new().layer(select).service_fn(inner));
/// ```
#[derive(Clone, Debug)]
pub struct SelectLayer<M, F> {
    models: M,
    funds: F,
}

impl<M, F> SelectLayer<M, F> {
    /// Creates a layer that finds models in `models`, and that checks the keys' funds with `funds`.
    pub const fn new(models: M, funds: F) -> Self {
        Self { models, funds }
    }
}

impl<M> SelectLayer<M, WithoutLedger> {
    /// Creates a layer that finds models in `models` and does not check funds.
    pub const fn without_ledger(models: M) -> Self {
        Self::new(models, WithoutLedger)
    }
}

impl<S, M: Clone, F: Clone> Layer<S> for SelectLayer<M, F> {
    type Service = Select<S, M, F>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = Arc::new(self.clone());
        Select { inner, layer }
    }
}

/// The service of [`SelectLayer`].
#[derive(Clone, Debug)]
pub struct Select<S, M, F> {
    inner: S,
    /// The layer. All clones of the service share it, because every call clones the service.
    layer: Arc<SelectLayer<M, F>>,
}

impl<S, M, F> Service<Request<Call>> for Select<S, M, F>
where
    S: Service<Request<Priced>, Error: Into<BoxError> + 'static> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: 'static,
    M: Models,
    F: Funds + Clone,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<Below<S::Future>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_below)
    }

    fn call(&mut self, req: Request<Call>) -> Self::Future {
        let (parts, call) = req.into_parts();
        let caller = parts.extensions.get::<Caller>();
        let models = &self.layer.models;
        let found = match caller {
            Some(Caller(key)) => models.find_model_for(&call.model, &key.account),
            None => models.find_model(&call.model),
        };
        let (model, prices) = match found {
            Found::Callable(model, prices) => (model, prices),
            Found::Unpriced => {
                return match check_caller(caller, &call.model) {
                    Ok(()) => self.refused_unless_empty(caller, Error::PriceUnavailable),
                    Err(error) => ResponseFuture::refused(error),
                };
            }
            Found::Unknown => {
                let similar = models.similar(&call.model);
                let model = call.model;
                return self.refused_unless_empty(caller, Error::ModelUnknown { model, similar });
            }
        };
        if let Err(error) = check_caller(caller, &model.id) {
            return ResponseFuture::refused(error);
        }
        if call.kind != model.kind {
            let problem = Problem::ModelOfKind(model.kind);
            return ResponseFuture::refused(Error::invalid("model", problem));
        }
        if let Err(error) = check_asks(&call, &model, &prices) {
            return ResponseFuture::refused(error);
        }
        let output_tokens = call
            .output_tokens
            .or(model.output_tokens_default)
            .map_or(model.output_tokens_max, |requested| {
                requested.min(model.output_tokens_max)
            });
        let priced = Priced {
            call: Arc::new(call),
            model,
            prices,
            output_tokens,
            meter: Meter::default(),
        };
        let call = self.inner.call(Request::from_parts(parts, priced));
        ResponseFuture::forwarded(Below::new(call))
    }
}

impl<S, M, F> Select<S, M, F>
where
    F: Funds + Clone,
{
    /// Returns `error` as the refusal or, if the key has nothing to spend, the error about its funds.
    fn refused_unless_empty<C, R>(&self, caller: Option<&Caller>, error: Error) -> ResponseFuture<C>
    where
        C: Future<Output = Result<R, Error>>,
    {
        let (funds, caller) = (self.layer.funds.clone(), caller.cloned());
        ResponseFuture::boxed(async move {
            if let Some(Caller(key)) = caller {
                funds.check(&key).await?;
            }
            Err(error)
        })
    }
}

/// Refuses a key that may not call this model.
fn check_caller(caller: Option<&Caller>, model: &str) -> Result<(), Error> {
    match caller {
        Some(Caller(key)) if key.is_owner() => Err(Error::OwnerKey),
        Some(Caller(key)) if !key.allows_model(model) => Err(Error::ModelNotAllowed {
            model: model.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Refuses a call that requests something for which the model has no price.
fn check_asks(call: &Call, model: &Model, prices: &PriceList) -> Result<(), Error> {
    let Some(asks) = &call.asks else {
        return Ok(());
    };
    let refuse = |field: &str| Err(Error::invalid(field.to_owned(), Problem::Unpriced));
    let spoken = |route: &Arc<Route>| route.vendor.speaking(call.format).format;
    // If every vendor of the model has another format, cache marks are ignored, because translation removes them.
    let of_format = |route: &Arc<Route>| spoken(route) == call.format;
    let extras = match model.routes.is_empty() || model.routes.iter().any(of_format) {
        true => match asks.unknown() {
            Some(field) => return refuse(field),
            None => *asks.extras(),
        },
        false => *asks.without_cache().extras(),
    };
    if let Some(kind) = prices.unpriced(&extras) {
        return refuse(asks.field(kind).unwrap_or_default());
    }
    if let Some(field) = asks.of_chat_alone() {
        let of_chat = |route: &Arc<Route>| spoken(route) == Format::Chat;
        if !model.routes.is_empty() && !model.routes.iter().any(of_chat) {
            return Err(Error::invalid(field.to_owned(), Problem::Unsupported));
        }
    }
    if let Some(field) = asks.unmeasured() {
        return Err(Error::invalid(field.to_owned(), Problem::Unsupported));
    }
    // The request must limit the number of web searches, because no hold can cover an unlimited number.
    let search = Class::WebSearchCall;
    if extras.classes.get(search) == Ask::WITHOUT_END {
        let field = asks.field(Unpriced::Class(search)).unwrap_or_default();
        let tool = field.strip_suffix("type").unwrap_or_default();
        return Err(Error::invalid(format!("{tool}max_uses"), Problem::Missing));
    }
    Ok(())
}
